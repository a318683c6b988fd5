//! Renderers: result → bytes. The result file's shape is [`result`]; nothing here measures or decides.

pub mod console;
pub mod result;

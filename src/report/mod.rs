//! Renderers: result → bytes. The result file's shape is [`result`]; nothing here measures or decides.

pub mod check;
pub mod console;
pub mod document;
pub mod json;
mod labels;
pub mod result;
pub mod sentence;
pub mod text;

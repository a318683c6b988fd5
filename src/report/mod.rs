//! Renderers: result → bytes. The result file's shape is [`result`]; nothing here measures or decides.

pub mod check;
pub mod console;
pub mod csv;
pub mod document;
pub mod html;
pub mod json;
mod labels;
pub mod markdown;
pub mod result;
pub mod sentence;
mod svg;
pub mod text;

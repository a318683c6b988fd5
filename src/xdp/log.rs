//! Keeps libbpf quiet, and remembers what it would have printed: the kernel's own sentence for an error's text.
//!
//! libbpf has one print function for the whole process, called on the thread that uses it; the memory is per thread.

use std::{cell::RefCell, io, sync::Once};

use libbpf_rs::{PrintLevel, set_print};

thread_local! {
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Sends libbpf's texts to `tracing` (level debug) instead of standard error, from now on. Cheap; call before using libbpf.
pub fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_print(Some((PrintLevel::Info, |level, text| {
            let text = text.trim().trim_start_matches("libbpf: ").to_owned();
            tracing::debug!(target: "libbpf", "{text}");
            if matches!(level, PrintLevel::Warn) {
                SAID.with_borrow_mut(|said| {
                    // A verifier log comes as one text; a few texts are all that anybody reads.
                    said.truncate(15);
                    said.push(text);
                });
            }
        })));
    });
}

/// Forgets what libbpf said on this thread.
pub(super) fn forget() {
    SAID.with_borrow_mut(Vec::clear);
}

/// The kernel's sentence (extended acknowledgement) among what libbpf said on this thread since [`forget`], if any.
pub(super) fn kernel_sentence() -> Option<String> {
    SAID.with_borrow(|said| {
        said.iter().rev().find_map(|text| text.strip_prefix("Kernel error message: ").map(str::to_owned))
    })
}

/// The last thing libbpf said on this thread since [`forget`].
pub(super) fn last() -> Option<String> {
    SAID.with_borrow(|said| said.last().cloned())
}

/// The operating system's error behind one of libbpf-rs, if there is one.
pub(super) fn os_error(error: &libbpf_rs::Error) -> Option<&io::Error> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(os) = error.downcast_ref::<io::Error>() {
            return Some(os);
        }
        cause = error.source();
    }
    None
}

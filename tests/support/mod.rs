//! What every kernel test uses: namespaces that clean up after themselves, the binary, counted skips.
//!
//! A test owns its namespaces through guards whose names carry the process id; dropping one (also while panicking) kills
//! what runs inside and deletes it. Nothing here touches an interface of the namespace the tests were started in.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod bpf;
pub mod capture_files;
pub mod frames;
pub mod harness;
pub mod inspect;
pub mod model;
pub mod netns;
pub mod profiles;
pub mod program;
pub mod run;
pub mod schema;
pub mod traffic;

//! The whole user-space path (program, slots, pacing) in memory, beside a plain loop that copies the same template into the
//! same slots.

use std::sync::Arc;

use std::{hint::black_box, time::Instant};

use plimsoll::{
    backend::mem::MemSink,
    engine::{BackendChoice, tx_worker::KICK_BATCH},
};

use crate::{
    port,
    rounds::{Claim, Outcome, Row, measure},
};

const RUN_NS: u64 = 300_000_000;
/// More than any path can do, so that the pacer always has frames due.
const BEYOND_FPS: u64 = 1_000_000_000;
/// As in the queue in memory.
const SLOT_BYTES: usize = 4096;

pub fn group(rounds: usize) -> Outcome {
    let template = port::default_program().streams[0].templates[0].bytes.clone();
    // A queue in memory reuses the slots it just got back: those of one kick.
    let mut memory = vec![0u8; KICK_BATCH * SLOT_BYTES];
    let plain = move || {
        let (start, mut frames) = (Instant::now(), 0u64);
        while start.elapsed().as_nanos() < u128::from(RUN_NS) {
            for _ in 0..1000 {
                for slot in memory.chunks_exact_mut(SLOT_BYTES) {
                    slot[..template.len()].copy_from_slice(black_box(&template));
                }
                black_box(&mut memory);
            }
            frames += 1000 * KICK_BATCH as u64;
        }
        Ok(frames as f64 / start.elapsed().as_secs_f64())
    };
    let whole = |load| {
        move || port::run(&mut port::open(BackendChoice::Mem(MemSink::counting()), 0, 1, Arc::default())?, load, RUN_NS)
    };
    let rows = vec![
        Row::new("plain copy", plain),
        Row::new("mem, max", whole(None)),
        Row::new("mem, paced", whole(Some(BEYOND_FPS))),
    ];
    let claims = vec![
        Claim { row: "mem, max", of: "plain copy", ratio: 0.5 },
        Claim { row: "mem, paced", of: "plain copy", ratio: 0.5 },
    ];
    // Short runs on shared cores: 5 of them are one state of the host.
    measure("user-space path", 5 * rounds, rows, claims)
}

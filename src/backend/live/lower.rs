//! Lowers a compiled program into BPF: straight-line code per template, written anew for every profile.
//!
//! Control plane, pure. The generated program runs once per live frame. It looks at the schedule ring whether a frame is
//! due, and if one is, writes all of it: pages come back as the receiver left them, so nothing in a page is ever trusted.
//! A slot of the call in which nothing is due ends in XDP_DROP, which recycles the page and costs about 0.1 µs; that is
//! how the program waits without a loop.
//!
//! Registers: R6 context, then the frame's index; R7 ring position, then the packet; R8 state; R9 stamp (0 = none fresh).

use super::{
    asm::{Alu, Asm, FP, Helper, If, Insn, Label, R0, R1, R2, R3, R4, R6, R7, R8, R9, Width},
    frame,
    layout::{
        Counter, DEBT_NS, END_NS, FILLED, FORGIVEN_NS, LAG_NS, LOOKED_NS, Layout, MADE, RELEASED_NS, RING, RING_DUE,
        RING_MASK, RING_STREAM, StreamLayout,
    },
};
use crate::{
    pacer,
    program::{Field, Generator, StreamProgram, TxProgram},
};

/// `enum xdp_action`. With the port as the ingress device, XDP_TX hands a live frame to the port's ndo_xdp_xmit.
pub(super) const XDP_DROP: i32 = 1;
pub(super) const XDP_PASS: i32 = 2;
pub(super) const XDP_TX: i32 = 3;

/// Frames between two looks at the clock at most; a power of two. A look drains the CPU's pipeline: once in 16 frames costs 1–3 % more.
pub(super) const CLOCK_EVERY: i32 = 64;

/// Looks at the clock this far apart are the normal course of things (a batch's flush, the start of a call); what is more is a CPU
/// that was taken away: debt. At 1 Mpps frames of 50 µs are a fifth of the smallest ring (veth's).
const PAUSE_NS: i32 = 50_000;
/// Debt is repaid at this share of the time, in 1/256: below a tenth, so that the rate stays below 1.1 times the asked.
const REPAID_256: i32 = 25;

/// Stack slot of the context. Field values lie below.
pub(super) const CONTEXT_SLOT: i16 = -8;

/// Stack slot of a field's value.
pub(super) fn field_slot(field: usize) -> i16 {
    -16 - 8 * field as i16
}

/// The maps that the program addresses.
#[derive(Debug, Clone, Copy)]
pub(super) struct MapFds {
    /// The state map.
    pub(super) state: i32,
    /// The constants map.
    pub(super) constants: i32,
}

/// Generates the program of one worker.
pub(super) fn lower(program: &TxProgram, layout: &Layout, maps: MapFds) -> Vec<Insn> {
    let mut asm = Asm::default();
    gate(&mut asm, maps);
    let bodies: Vec<Label> = program.streams.iter().map(|_| asm.label()).collect();
    if let [_, _, ..] = bodies[..] {
        asm.alu(Alu::And, R7, RING as i32 - 1);
        asm.alu(Alu::Lsh, R7, 1);
        asm.alu(Alu::Add, R8, R7);
        asm.load(Width::Half, R1, R8, RING_STREAM as i16);
        select(&mut asm, &bodies, 0);
    }
    let max_len = program.max_buf_len();
    for ((stream, at), body) in program.streams.iter().zip(&layout.streams).zip(bodies) {
        asm.bind(body);
        stream_body(&mut asm, stream, at, maps, max_len);
    }
    asm.finish()
}

/// Drops the slot unless a frame is due; else takes its ring entry and falls through with its number in R7.
///
/// The clock is read when the entry lies beyond the last reading, and once in [`CLOCK_EVERY`] frames anyway, at a place that moves
/// through them so that no stream of a periodic mix is always or never stamped. Whenever it is read, the frame is stamped.
///
/// An entry may leave once the release clock has reached its time. That clock is as far behind as the CPU was taken away while frames
/// were waiting: they do not leave in a burst, which would overflow the DUT's ring and look like its limit. It catches up as a pacer does.
fn gate(asm: &mut Asm, maps: MapFds) {
    let (idle, clock, go) = (asm.label(), asm.label(), asm.label());
    asm.store(Width::Double, FP, CONTEXT_SLOT, R1);
    asm.map_value(R8, maps.state, 0);
    asm.load(Width::Double, R7, R8, MADE);
    asm.load(Width::Double, R1, R8, FILLED);
    asm.jump_if(R7, If::Eq, R1, idle);
    asm.load(Width::Double, R1, R8, RING_MASK);
    asm.alu(Alu::And, R1, R7);
    asm.alu(Alu::And, R1, RING as i32 - 1); // what the verifier must know
    asm.alu(Alu::Lsh, R1, 3);
    asm.mov(R6, R8);
    asm.alu(Alu::Add, R6, R1);
    asm.load(Width::Double, R6, R6, RING_DUE as i16);
    asm.alu(Alu::Mov, R9, 0);
    asm.load(Width::Double, R1, R8, RELEASED_NS);
    asm.jump_if(R6, If::Gt, R1, clock);
    asm.mov(R1, R7);
    asm.alu(Alu::Rsh, R1, CLOCK_EVERY.ilog2() as i32);
    asm.alu(Alu::Xor, R1, R7);
    asm.alu(Alu::And, R1, CLOCK_EVERY - 1);
    asm.jump_if(R1, If::Ne, CLOCK_EVERY - 1, go);

    asm.bind(clock);
    asm.call(Helper::KtimeGetNs);
    release_clock(asm);
    asm.jump_if(R6, If::Gt, R2, idle);
    asm.load(Width::Double, R1, R8, END_NS);
    asm.jump_if(R0, If::Ge, R1, idle);
    asm.low32(R9, R0);
    asm.jump_if(R9, If::Ne, 0, go);
    asm.alu(Alu::Mov, R9, 1);
    asm.jump(go);

    asm.bind(idle);
    asm.exit_with(XDP_DROP);

    asm.bind(go);
    asm.mov(R1, R7);
    asm.alu(Alu::Add, R1, 1);
    asm.store(Width::Double, R8, MADE, R1);
}

/// R2 = the release clock, for the time R0; keeps R6 to R9.
fn release_clock(asm: &mut Asm) {
    let (late, owes, keep, done) = (asm.label(), asm.label(), asm.label(), asm.label());
    asm.load(Width::Double, R1, R8, LOOKED_NS);
    asm.store(Width::Double, R8, LOOKED_NS, R0);
    asm.load(Width::Double, R4, R8, LAG_NS);
    asm.jump_if(R1, If::Eq, 0, done);
    asm.mov(R2, R0);
    asm.alu(Alu::Sub, R2, R1);
    asm.load(Width::Double, R3, R8, DEBT_NS);
    asm.jump_if(R2, If::Gt, PAUSE_NS, late);
    asm.jump_if(R3, If::Eq, 0, done);
    asm.alu(Alu::Mul, R2, REPAID_256);
    asm.alu(Alu::Rsh, R2, 8);
    asm.jump_if(R3, If::Ge, R2, owes);
    asm.mov(R2, R3);
    asm.bind(owes);
    asm.alu(Alu::Sub, R3, R2);
    asm.alu(Alu::Sub, R4, R2);
    asm.jump(keep);

    asm.bind(late);
    asm.alu(Alu::Sub, R2, PAUSE_NS);
    asm.alu(Alu::Add, R3, R2);
    asm.alu(Alu::Add, R4, R2);
    asm.jump_if(R3, If::Lt, pacer::DEBT_NS as i32 + 1, keep);
    asm.alu(Alu::Sub, R3, pacer::DEBT_NS as i32);
    asm.load(Width::Double, R1, R8, FORGIVEN_NS);
    asm.alu(Alu::Add, R1, R3);
    asm.store(Width::Double, R8, FORGIVEN_NS, R1);
    asm.alu(Alu::Mov, R3, pacer::DEBT_NS as i32);

    asm.bind(keep);
    asm.store(Width::Double, R8, DEBT_NS, R3);
    asm.store(Width::Double, R8, LAG_NS, R4);
    asm.bind(done);
    asm.mov(R2, R0);
    asm.alu(Alu::Sub, R2, R4);
    asm.store(Width::Double, R8, RELEASED_NS, R2);
}

/// Jumps to `targets[R1 - base]` by halving; a number beyond the last goes to the last.
fn select(asm: &mut Asm, targets: &[Label], base: usize) {
    match targets {
        [] => unreachable!("a program has streams, and a stream templates"),
        [target] => asm.jump(*target),
        _ => {
            let (low, high) = targets.split_at(targets.len() / 2);
            let upper = asm.label();
            asm.jump_if(R1, If::Ge, (base + low.len()) as i32, upper);
            select(asm, low, base);
            asm.bind(upper);
            select(asm, high, base + low.len());
        }
    }
}

/// Index, field values and pattern of one stream, then its templates.
fn stream_body(asm: &mut Asm, stream: &StreamProgram, at: &StreamLayout, maps: MapFds, max_len: usize) {
    let drop = asm.label();
    asm.map_value(R8, maps.state, at.state);
    asm.load(Width::Double, R6, R8, StreamLayout::INDEX);
    asm.mov(R1, R6);
    asm.alu(Alu::Add, R1, i32::from(at.index_step));
    asm.store(Width::Double, R8, StreamLayout::INDEX, R1);
    for (number, field) in stream.fields.iter().enumerate() {
        counter(asm, &at.fields[number], StreamLayout::field(number));
        value(asm, field, at.lists_at[number], maps, drop);
        asm.store(Width::Double, FP, field_slot(number), R2);
    }
    if let [template] = &stream.templates[..] {
        frame::emit(asm, stream, template, at.templates_at[0], maps, max_len);
        // The verifier refuses what nothing jumps to.
        if stream.fields.iter().any(|field| matches!(field.generator, Generator::List(_))) {
            asm.bind(drop);
            asm.exit_with(XDP_DROP);
        }
        return;
    }
    counter(asm, &at.pattern, StreamLayout::PATTERN - 8);
    asm.jump_if(R1, If::Ge, stream.pattern.len() as i32, drop);
    asm.alu(Alu::Lsh, R1, 1);
    asm.map_value(R2, maps.constants, at.pattern_at);
    asm.alu(Alu::Add, R2, R1);
    asm.load(Width::Half, R1, R2, 0);
    let bodies: Vec<Label> = stream.templates.iter().map(|_| asm.label()).collect();
    select(asm, &bodies, 0);
    asm.bind(drop);
    asm.exit_with(XDP_DROP);
    for ((template, bytes_at), body) in stream.templates.iter().zip(&at.templates_at).zip(bodies) {
        asm.bind(body);
        frame::emit(asm, stream, template, *bytes_at, maps, max_len);
    }
}

/// R1 = the count of the counter at `offset` (remainder, count) in the stream's state; advances it for the next frame.
fn counter(asm: &mut Asm, counter: &Counter, offset: i16) {
    if counter.is_constant() {
        asm.constant(R1, counter.start[1]);
        return;
    }
    let (remainder_at, count_at) = (offset, offset + 8);
    asm.load(Width::Double, R1, R8, count_at);
    asm.mov(R2, R1);
    asm.alu_const(Alu::Add, R2, counter.step, R4);
    if let Some(div) = counter.div {
        let no_carry = asm.label();
        asm.load(Width::Double, R3, R8, remainder_at);
        asm.alu_const(Alu::Add, R3, counter.div_step, R4);
        asm.constant(R4, div);
        asm.jump_if(R3, If::Lt, R4, no_carry);
        asm.alu(Alu::Sub, R3, R4);
        asm.alu(Alu::Add, R2, 1);
        asm.bind(no_carry);
        asm.store(Width::Double, R8, remainder_at, R3);
    }
    if let Some(period) = counter.period {
        let no_wrap = asm.label();
        asm.constant(R4, period);
        asm.jump_if(R2, If::Lt, R4, no_wrap);
        asm.alu(Alu::Sub, R2, R4);
        asm.bind(no_wrap);
    }
    asm.store(Width::Double, R8, count_at, R2);
}

/// R2 = the field's value at step R1 ([`Field::value`]).
fn value(asm: &mut Asm, field: &Field, list_at: u32, maps: MapFds, drop: Label) {
    match &field.generator {
        Generator::Step { start, step } => {
            asm.mov(R2, R1);
            if *step != 1 {
                asm.alu_const(Alu::Mul, R2, *step, R3);
            }
            asm.alu_const(Alu::Add, R2, *start, R3);
        }
        Generator::List(values) => {
            // Never taken: the verifier does not know what user space put into the state.
            asm.constant(R3, values.len() as u64);
            asm.jump_if(R1, If::Ge, R3, drop);
            asm.alu(Alu::Lsh, R1, 3);
            asm.map_value(R2, maps.constants, list_at);
            asm.alu(Alu::Add, R2, R1);
            asm.load(Width::Double, R2, R2, 0);
        }
        Generator::Random { seed, low, span } => random(asm, *seed, *low, *span),
    }
}

/// R2 = low + the R1-th random number below `span` ([`crate::program::random_value`]).
fn random(asm: &mut Asm, seed: u64, low: u64, span: u64) {
    asm.mov(R2, R1);
    asm.alu(Alu::Add, R2, 1);
    asm.alu_const(Alu::Mul, R2, 0x9E37_79B9_7F4A_7C15, R3);
    asm.alu_const(Alu::Add, R2, seed, R3);
    for (shift, factor) in [(30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)] {
        asm.mov(R3, R2);
        asm.alu(Alu::Rsh, R3, shift);
        asm.alu(Alu::Xor, R2, R3);
        asm.alu_const(Alu::Mul, R2, factor, R3);
    }
    asm.mov(R3, R2);
    asm.alu(Alu::Rsh, R3, 31);
    asm.alu(Alu::Xor, R2, R3);
    if span <= 1 << 32 {
        asm.alu(Alu::Rsh, R2, 32);
        asm.alu_const(Alu::Mul, R2, span, R3);
        asm.alu(Alu::Rsh, R2, 32);
    } else {
        asm.constant(R3, span);
        asm.alu(Alu::Mod, R2, R3);
    }
    asm.alu_const(Alu::Add, R2, low, R3);
}

//! A small BPF assembler: typed instructions, labels, jumps of any distance.
//!
//! Control plane only. Pure: it knows the instruction encoding (RFC 9669) and nothing about frames or the kernel's calls.

/// One instruction as the kernel takes it (`struct bpf_insn`; RFC 9669 §3).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Insn {
    code: u8,
    registers: u8,
    offset: i16,
    imm: i32,
}

/// A register. R1…R5 are lost by a call, R6…R9 survive it; R10 is the frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reg(u8);

pub(super) const R0: Reg = Reg(0);
pub(super) const R1: Reg = Reg(1);
pub(super) const R2: Reg = Reg(2);
pub(super) const R3: Reg = Reg(3);
pub(super) const R4: Reg = Reg(4);
pub(super) const R6: Reg = Reg(6);
pub(super) const R7: Reg = Reg(7);
pub(super) const R8: Reg = Reg(8);
pub(super) const R9: Reg = Reg(9);
pub(super) const FP: Reg = Reg(10);

/// Width of a memory access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// 4 bytes.
    Word = 0x00,
    /// 2 bytes.
    Half = 0x08,
    /// 1 byte.
    Byte = 0x10,
    /// 8 bytes.
    Double = 0x18,
}

impl Width {
    /// The widest access of at most this many bytes, and its width in bytes.
    pub(super) fn at_most(bytes: usize) -> (Width, usize) {
        match bytes {
            0 | 1 => (Width::Byte, 1),
            2 | 3 => (Width::Half, 2),
            4..=7 => (Width::Word, 4),
            _ => (Width::Double, 8),
        }
    }
}

/// 64-bit arithmetic.
#[derive(Debug, Clone, Copy)]
pub(super) enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Or = 0x40,
    And = 0x50,
    Lsh = 0x60,
    Rsh = 0x70,
    Mod = 0x90,
    Xor = 0xA0,
    Mov = 0xB0,
}

/// Unsigned 64-bit comparison.
#[derive(Debug, Clone, Copy)]
pub(super) enum If {
    Eq = 0x10,
    Gt = 0x20,
    Ge = 0x30,
    Ne = 0x50,
    Lt = 0xA0,
}

/// Right operand: a register or a constant.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operand {
    Reg(Reg),
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Operand {
        Operand::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(imm: i32) -> Operand {
        Operand::Imm(imm)
    }
}

/// The kernel functions that generated programs call (`enum bpf_func_id`, include/uapi/linux/bpf.h).
#[derive(Debug, Clone, Copy)]
pub(super) enum Helper {
    KtimeGetNs = 5,
    XdpAdjustTail = 65,
    XdpStoreBytes = 190,
}

/// A place in the program, bound once, jumped to from anywhere.
#[derive(Debug, Clone, Copy)]
pub(super) struct Label(usize);

/// The program under construction. Jumps keep their label until [`Asm::finish`].
#[derive(Debug, Default)]
pub(super) struct Asm {
    insns: Vec<Insn>,
    bound: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

const CLASS_LD: u8 = 0x00;
const CLASS_LDX: u8 = 0x01;
const CLASS_ST: u8 = 0x02;
const CLASS_STX: u8 = 0x03;
const CLASS_JMP: u8 = 0x05;
const CLASS_JMP32: u8 = 0x06;
const CLASS_ALU32: u8 = 0x04;
const CLASS_ALU64: u8 = 0x07;
const MODE_MEM: u8 = 0x60;
const SOURCE_REG: u8 = 0x08;
const JUMP_ALWAYS: u8 = 0x00;
const PSEUDO_MAP_VALUE: u8 = 2;

impl Asm {
    fn push(&mut self, code: u8, dst: Reg, src: Reg, offset: i16, imm: i32) {
        self.insns.push(Insn { code, registers: dst.0 | (src.0 << 4), offset, imm });
    }

    /// A label to bind later.
    pub(super) fn label(&mut self) -> Label {
        self.bound.push(None);
        Label(self.bound.len() - 1)
    }

    /// Binds the label to the next instruction.
    pub(super) fn bind(&mut self, label: Label) {
        debug_assert!(self.bound[label.0].is_none(), "a label is bound once");
        self.bound[label.0] = Some(self.insns.len());
    }

    /// dst = dst `op` operand.
    pub(super) fn alu(&mut self, op: Alu, dst: Reg, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Reg(src) => self.push(CLASS_ALU64 | SOURCE_REG | op as u8, dst, src, 0, 0),
            Operand::Imm(imm) => self.push(CLASS_ALU64 | op as u8, dst, R0, 0, imm),
        }
    }

    /// dst = dst `op` constant, through `scratch` where the constant does not fit the instruction.
    pub(super) fn alu_const(&mut self, op: Alu, dst: Reg, constant: u64, scratch: Reg) {
        match i32::try_from(constant as i64) {
            Ok(imm) => self.alu(op, dst, imm),
            Err(_) => {
                self.constant(scratch, constant);
                self.alu(op, dst, scratch);
            }
        }
    }

    /// dst = src.
    pub(super) fn mov(&mut self, dst: Reg, src: Reg) {
        if dst != src {
            self.alu(Alu::Mov, dst, src);
        }
    }

    /// dst = constant, in the shortest form.
    pub(super) fn constant(&mut self, dst: Reg, value: u64) {
        if let Ok(imm) = i32::try_from(value as i64) {
            self.alu(Alu::Mov, dst, imm);
        } else if let Ok(low) = u32::try_from(value) {
            self.push(CLASS_ALU32 | Alu::Mov as u8, dst, R0, 0, low as i32);
        } else {
            self.push(CLASS_LD | Width::Double as u8, dst, R0, 0, value as u32 as i32);
            self.push(0, R0, R0, 0, (value >> 32) as u32 as i32);
        }
    }

    /// dst = low 32 bits of src.
    pub(super) fn low32(&mut self, dst: Reg, src: Reg) {
        self.push(CLASS_ALU32 | SOURCE_REG | Alu::Mov as u8, dst, src, 0, 0);
    }

    /// dst = address of byte `offset` in the only value of the array map `fd`.
    pub(super) fn map_value(&mut self, dst: Reg, fd: i32, offset: u32) {
        self.push(CLASS_LD | Width::Double as u8, dst, Reg(PSEUDO_MAP_VALUE), 0, fd);
        self.push(0, R0, R0, 0, offset as i32);
    }

    /// dst = the low `bytes` (2, 4 or 8) of dst in big-endian order.
    pub(super) fn swap_to_be(&mut self, dst: Reg, bytes: usize) {
        self.push(0xDC, dst, R0, 0, bytes as i32 * 8);
    }

    /// dst = *(base + offset).
    pub(super) fn load(&mut self, width: Width, dst: Reg, base: Reg, offset: i16) {
        self.push(CLASS_LDX | MODE_MEM | width as u8, dst, base, offset, 0);
    }

    /// *(base + offset) = src.
    pub(super) fn store(&mut self, width: Width, base: Reg, offset: i16, src: Reg) {
        self.push(CLASS_STX | MODE_MEM | width as u8, base, src, offset, 0);
    }

    /// *(base + offset) = constant (as it stands in a register, little-endian), through `scratch` if it must.
    pub(super) fn store_const(&mut self, width: Width, base: Reg, offset: i16, value: u64, scratch: Reg) {
        match (width, i32::try_from(value as i64)) {
            (Width::Double, Err(_)) => {
                self.constant(scratch, value);
                self.store(width, base, offset, scratch);
            }
            (Width::Double, Ok(imm)) => self.push(CLASS_ST | MODE_MEM | width as u8, base, R0, offset, imm),
            _ => self.push(CLASS_ST | MODE_MEM | width as u8, base, R0, offset, value as u32 as i32),
        }
    }

    /// Jumps to the label.
    pub(super) fn jump(&mut self, label: Label) {
        self.jumps.push((self.insns.len(), label));
        self.push(CLASS_JMP | JUMP_ALWAYS, R0, R0, 0, 0);
    }

    /// Jumps to the label if the comparison holds. The label must be near (32,767 instructions).
    pub(super) fn jump_if(&mut self, left: Reg, condition: If, right: impl Into<Operand>, label: Label) {
        self.jumps.push((self.insns.len(), label));
        match right.into() {
            Operand::Reg(src) => self.push(CLASS_JMP | SOURCE_REG | condition as u8, left, src, 0, 0),
            Operand::Imm(imm) => self.push(CLASS_JMP | condition as u8, left, R0, 0, imm),
        }
    }

    /// Calls a kernel function: arguments R1…R5, result R0.
    pub(super) fn call(&mut self, helper: Helper) {
        self.push(CLASS_JMP | 0x80, R0, R0, 0, helper as i32);
    }

    /// Returns this constant.
    pub(super) fn exit_with(&mut self, value: i32) {
        self.alu(Alu::Mov, R0, value);
        self.push(CLASS_JMP | 0x90, R0, R0, 0, 0);
    }

    /// Resolves the jumps. An unconditional jump that is too far takes the 32-bit form (`gotol`, Linux ≥ 6.6).
    pub(super) fn finish(mut self) -> Vec<Insn> {
        for (at, label) in std::mem::take(&mut self.jumps) {
            let target = self.bound[label.0].expect("every label is bound");
            let distance = target as i64 - at as i64 - 1;
            let insn = &mut self.insns[at];
            match i16::try_from(distance) {
                Ok(near) => insn.offset = near,
                Err(_) => {
                    assert_eq!(insn.code, CLASS_JMP | JUMP_ALWAYS, "only unconditional jumps go far");
                    insn.code = CLASS_JMP32 | JUMP_ALWAYS;
                    insn.imm = i32::try_from(distance).expect("a program is shorter than 2^31");
                }
            }
        }
        self.insns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_take_their_shortest_form() {
        let lengths = [0, 1, u64::MAX, 0xFFFF_FFFF, 1 << 31, 1 << 32, 1 << 63].map(|value| {
            let mut asm = Asm::default();
            asm.constant(R1, value);
            asm.insns.len()
        });
        assert_eq!(lengths, [1, 1, 1, 1, 1, 2, 2]);
    }

    #[test]
    fn a_jump_beyond_the_16_bit_offset_takes_the_32_bit_form() {
        let mut asm = Asm::default();
        let (near, far) = (asm.label(), asm.label());
        asm.jump(near);
        asm.jump(far);
        asm.bind(near);
        for _ in 0..40_000 {
            asm.alu(Alu::Mov, R0, 0);
        }
        asm.bind(far);
        asm.exit_with(0);
        let insns = asm.finish();
        assert_eq!((insns[0].code, insns[0].offset, insns[0].imm), (0x05, 1, 0));
        assert_eq!((insns[1].code, insns[1].offset, insns[1].imm), (0x06, 0, 40_000));
    }
}

//! An eBPF program that makes a block device slower: it spins before each of its requests.
//!
//! It is attached to the tracepoint `block_bio_queue`, which the thread that makes a request passes before the device's driver gets the
//! request. So a device that completes its requests at once, such as zram, becomes one of the latency that is asked for, and the thread waits on its core, as
//! in the ramdisk driver of the paper.
//!
//! # Source
//! RFC 9669 for the instructions, and include/uapi/linux/bpf.h of Linux for the numbers of the helpers.

use super::btf::{Btf, BtfError};

/// The least time between two readings of the clock, for the number of iterations.
const CLOCK_NS: u64 = 15;
/// The verifier follows at most 8192 jumps: one of each iteration, and few others.
const ITERATIONS: i32 = 4000;
/// A longer time in the kernel without a pause would disturb other programs.
const LONGEST_NS: u64 = 1_000_000;
/// The bytes of a request's description that are copied to the stack.
const WINDOW: u32 = 128;

const HELPER_KTIME_GET_NS: i32 = 5;
const HELPER_PROBE_READ_KERNEL: i32 = 113;

/// Where the kernel keeps what the program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// Of a request, its device.
    pub bio_device: u32,
    /// Of a request, its operation.
    pub bio_operation: u32,
    /// Of a request, its length.
    pub bio_bytes: u32,
    /// Of a device, its number.
    pub device_number: u32,
}

/// The time for which requests of one kind are delayed: `base_ns`, and `kib_ns` for each KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// For each request.
    pub base_ns: u32,
    /// For each KiB of it.
    pub kib_ns: u32,
}

/// The delays of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// The device's number as the kernel has it: the major number, shifted by 20, and the minor.
    pub device: u32,
    /// Of reads.
    pub read: Delay,
    /// Of writes.
    pub write: Delay,
    /// The longest delay of one request that is needed. Longer ones end there.
    pub longest_ns: u64,
}

impl Offsets {
    /// Of the running kernel.
    pub fn of_kernel() -> Result<Self, BtfError> {
        let btf = Btf::of_kernel()?;
        let offsets = Self {
            bio_device: btf.offset("bio", "bi_bdev")?,
            bio_operation: btf.offset("bio", "bi_opf")?,
            bio_bytes: btf.offset("bio", "bi_iter.bi_size")?,
            device_number: btf.offset("block_device", "bd_dev")?,
        };
        if [offsets.bio_device, offsets.bio_operation, offsets.bio_bytes].iter().any(|at| at + 8 > WINDOW) {
            return Err(BtfError::Missing(format!(
                "request whose description is in its first {WINDOW} bytes"
            )));
        }
        Ok(offsets)
    }
}

impl Delays {
    /// Whether a spin of this length is possible.
    #[must_use]
    pub const fn can_be(ns: u64) -> bool {
        ns <= LONGEST_NS
    }

    /// The program's instructions.
    #[must_use]
    pub fn program(&self, offsets: Offsets) -> Vec<u64> {
        use Register::{R0, R1, R2, R3, R7, R8, R9, R10};
        let at = |offset: u32| -stack(WINDOW) + stack(offset);
        let mut asm = Assembler::default();
        // The tracepoint's first argument is the request. Its description is copied to the stack, and then the number of its device.
        asm.load64(R3, R1, 0);
        asm.copy_from_kernel(-stack(WINDOW), WINDOW);
        asm.load64(R3, R10, at(offsets.bio_device));
        asm.add(R3, constant(offsets.device_number));
        asm.copy_from_kernel(-stack(WINDOW) - 8, 4);
        asm.load32(R1, R10, -stack(WINDOW) - 8);
        asm.jump_unless_equal(R1, constant(self.device), "end");
        // The length in KiB, times the delay of one, and the other delay.
        asm.load32(R7, R10, at(offsets.bio_bytes));
        asm.shift_right(R7, 10);
        asm.load32(R2, R10, at(offsets.bio_operation));
        // REQ_OP_READ is 0, REQ_OP_WRITE 1; other operations are not delayed.
        asm.and(R2, 0xff);
        asm.jump_if_equal(R2, 0, "read");
        asm.jump_unless_equal(R2, 1, "end");
        asm.multiply(R7, constant(self.write.kib_ns));
        asm.add(R7, constant(self.write.base_ns));
        asm.jump("spin");
        asm.label("read");
        asm.multiply(R7, constant(self.read.kib_ns));
        asm.add(R7, constant(self.read.base_ns));
        asm.label("spin");
        asm.jump_if_equal(R7, 0, "end");
        asm.call(HELPER_KTIME_GET_NS);
        asm.copy(R8, R0);
        asm.add_register(R8, R7);
        asm.set(R9, ITERATIONS);
        asm.label("again");
        for _ in 0..self.readings_per_iteration() {
            asm.call(HELPER_KTIME_GET_NS);
        }
        asm.jump_unless_less(R0, R8, "end");
        asm.add(R9, -1);
        asm.jump_unless_equal(R9, 0, "again");
        asm.label("end");
        asm.set(R0, 0);
        asm.exit();
        asm.finish()
    }

    /// How often each iteration reads the clock, so that the iterations suffice for the longest delay.
    fn readings_per_iteration(&self) -> u64 {
        let iterations = u64::from(ITERATIONS.unsigned_abs());
        self.longest_ns.min(LONGEST_NS).div_ceil(iterations * CLOCK_NS).max(1)
    }
}

/// A number as an immediate operand. A delay or a device's number has at most 31 bits.
fn constant(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn stack(bytes: u32) -> i16 {
    i16::try_from(bytes).unwrap_or(i16::MAX)
}

/// R1 to R5 are arguments of a helper, which does not keep them; R0 is its result; R10 is the end of the stack.
#[derive(Clone, Copy)]
enum Register {
    R0,
    R1,
    R2,
    R3,
    R7 = 7,
    R8,
    R9,
    R10,
}

#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    labels: Vec<(&'static str, usize)>,
}

struct Instruction {
    opcode: u8,
    destination: u8,
    source: u8,
    offset: i16,
    immediate: i32,
    target: Option<&'static str>,
}

impl Assembler {
    fn emit(&mut self, opcode: u8, registers: [u8; 2], offset: i16, immediate: i32) {
        let [destination, source] = registers;
        self.code.push(Instruction { opcode, destination, source, offset, immediate, target: None });
    }

    fn branch(&mut self, opcode: u8, registers: [u8; 2], immediate: i32, target: &'static str) {
        let [destination, source] = registers;
        self.code.push(Instruction {
            opcode,
            destination,
            source,
            offset: 0,
            immediate,
            target: Some(target),
        });
    }

    fn label(&mut self, name: &'static str) {
        self.labels.push((name, self.code.len()));
    }

    fn load64(&mut self, to: Register, from: Register, offset: i16) {
        self.emit(0x79, [to as u8, from as u8], offset, 0);
    }

    fn load32(&mut self, to: Register, from: Register, offset: i16) {
        self.emit(0x61, [to as u8, from as u8], offset, 0);
    }

    fn set(&mut self, register: Register, value: i32) {
        self.emit(0xb7, [register as u8, 0], 0, value);
    }

    fn copy(&mut self, to: Register, from: Register) {
        self.emit(0xbf, [to as u8, from as u8], 0, 0);
    }

    fn add(&mut self, register: Register, value: i32) {
        self.emit(0x07, [register as u8, 0], 0, value);
    }

    fn add_register(&mut self, register: Register, other: Register) {
        self.emit(0x0f, [register as u8, other as u8], 0, 0);
    }

    fn multiply(&mut self, register: Register, value: i32) {
        self.emit(0x27, [register as u8, 0], 0, value);
    }

    fn and(&mut self, register: Register, value: i32) {
        self.emit(0x57, [register as u8, 0], 0, value);
    }

    fn shift_right(&mut self, register: Register, bits: i32) {
        self.emit(0x77, [register as u8, 0], 0, bits);
    }

    fn call(&mut self, helper: i32) {
        self.emit(0x85, [0, 0], 0, helper);
    }

    fn exit(&mut self) {
        self.emit(0x95, [0, 0], 0, 0);
    }

    fn jump(&mut self, target: &'static str) {
        self.branch(0x05, [0, 0], 0, target);
    }

    fn jump_if_equal(&mut self, register: Register, value: i32, target: &'static str) {
        self.branch(0x15, [register as u8, 0], value, target);
    }

    fn jump_unless_equal(&mut self, register: Register, value: i32, target: &'static str) {
        self.branch(0x55, [register as u8, 0], value, target);
    }

    /// If `register` is at least `other`.
    fn jump_unless_less(&mut self, register: Register, other: Register, target: &'static str) {
        self.branch(0x3d, [register as u8, other as u8], 0, target);
    }

    /// Copies from the address in R3 to the stack.
    fn copy_from_kernel(&mut self, to: i16, bytes: u32) {
        self.copy(Register::R1, Register::R10);
        self.add(Register::R1, i32::from(to));
        self.set(Register::R2, constant(bytes));
        self.call(HELPER_PROBE_READ_KERNEL);
    }

    fn finish(self) -> Vec<u64> {
        let distance = |at: usize, target: &str| {
            let label = self.labels.iter().find(|(name, _)| *name == target);
            let to = label.expect("every target is a label").1;
            let distance = i64::try_from(to).and_then(|to| Ok(to - i64::try_from(at)? - 1));
            distance.ok().and_then(|distance| i16::try_from(distance).ok()).expect("the program is short")
        };
        let encode = |(at, instruction): (usize, &Instruction)| {
            let offset = instruction.target.map_or(instruction.offset, |target| distance(at, target));
            let [low, high] = offset.to_le_bytes();
            let [a, b, c, d] = instruction.immediate.to_le_bytes();
            let registers = instruction.source << 4 | instruction.destination;
            u64::from_le_bytes([instruction.opcode, registers, low, high, a, b, c, d])
        };
        self.code.iter().enumerate().map(encode).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSETS: Offsets = Offsets { bio_device: 8, bio_operation: 16, bio_bytes: 40, device_number: 52 };
    const DELAYS: Delays = Delays {
        device: 252 << 20 | 1,
        read: Delay { base_ns: 1000, kib_ns: 10 },
        write: Delay { base_ns: 2000, kib_ns: 20 },
        longest_ns: 10_000,
    };

    /// Interprets the program for a request, and returns the time that it spends if the clock advances by 100 ns a reading.
    fn spun(program: &[u64], device: u32, operation: u32, bytes: u32) -> u64 {
        let (mut registers, mut stack) = ([0_u64; 11], [0_u8; 512]);
        let (mut clock, mut first, mut steps) = (5_000, None, 0);
        let mut at = 0_i64;
        loop {
            let [opcode, pair, low, high, a, b, c, d] = program[usize::try_from(at).unwrap()].to_le_bytes();
            let (to, from) = (usize::from(pair & 15), usize::from(pair >> 4));
            let offset = i64::from(i16::from_le_bytes([low, high]));
            let value = i64::from(i32::from_le_bytes([a, b, c, d])) as u64;
            let slot = |register: u64, offset: i64| usize::try_from(register as i64 + offset).unwrap();
            at += 1;
            steps += 1;
            assert!(steps < 100_000, "the program ends");
            match opcode {
                // The context holds the address of the request, 1000 here; the stack ends at 512.
                0x79 if from == 1 => registers[to] = 1000,
                0x79 => {
                    registers[to] =
                        u64::from_le_bytes(*stack[slot(registers[from], offset)..].first_chunk().unwrap())
                }
                0x61 => {
                    let word =
                        u32::from_le_bytes(*stack[slot(registers[from], offset)..].first_chunk().unwrap());
                    registers[to] = word.into();
                }
                0xb7 => registers[to] = value,
                0xbf => registers[to] = if from == 10 { 512 } else { registers[from] },
                0x07 => registers[to] = registers[to].wrapping_add(value),
                0x0f => registers[to] += registers[from],
                0x27 => registers[to] *= value,
                0x57 => registers[to] &= value,
                0x77 => registers[to] >>= value,
                0x05 => at += offset,
                0x15 if registers[to] == value => at += offset,
                0x55 if registers[to] != value => at += offset,
                0x3d if registers[to] >= registers[from] => at += offset,
                0x15 | 0x55 | 0x3d => {}
                0x85 if value == 5 => {
                    first.get_or_insert(clock);
                    registers[0] = clock;
                    clock += 100;
                }
                0x85 => {
                    assert_eq!(value, 113);
                    let mut memory = [0_u8; 256];
                    memory[8..16].copy_from_slice(&9000_u64.to_le_bytes());
                    memory[16..20].copy_from_slice(&operation.to_le_bytes());
                    memory[40..44].copy_from_slice(&bytes.to_le_bytes());
                    let address = registers[3];
                    if address != 1000 {
                        assert_eq!(address, 9052, "the number is read of the device of the request");
                        memory[..4].copy_from_slice(&device.to_le_bytes());
                    }
                    let (begin, len) = (slot(registers[1], 0), slot(registers[2], 0));
                    stack[begin..begin + len].copy_from_slice(&memory[..len]);
                }
                0x95 => return first.map_or(0, |first| clock - 100 - first),
                _ => panic!("opcode {opcode:#x}"),
            }
            registers[10] = 512;
        }
    }

    #[test]
    fn requests_spin_for_as_long_as_their_kind_and_length_ask() {
        let program = DELAYS.program(OFFSETS);
        assert_eq!(spun(&program, DELAYS.device, 0, 4096), 1100, "1000 + 4 * 10, in steps of 100");
        assert_eq!(spun(&program, DELAYS.device, 1, 65_536), 3300, "2000 + 64 * 20");
        assert_eq!(spun(&program, DELAYS.device, 0x8000 | 1, 4096), 2100, "flags are not the operation");
        assert_eq!(spun(&program, DELAYS.device, 2, 4096), 0, "neither read nor written");
        assert_eq!(spun(&program, DELAYS.device + 1, 0, 4096), 0, "another device");
    }

    #[test]
    fn without_delay_the_clock_is_not_read() {
        let program = Delays { read: Delay::default(), ..DELAYS }.program(OFFSETS);
        assert_eq!(spun(&program, DELAYS.device, 0, 4096), 0);
    }

    #[test]
    fn longest_delay_ends_within_what_the_verifier_follows() {
        let long = Delays { longest_ns: LONGEST_NS, ..DELAYS };
        assert!(long.readings_per_iteration() * CLOCK_NS * 4000 >= LONGEST_NS);
        let program = long.program(OFFSETS);
        let jumps = program.iter().filter(|word| matches!(word.to_le_bytes()[0], 0x15 | 0x3d | 0x55)).count();
        assert!(jumps * 4 < 8192, "{jumps} outside of the loop");
        assert!(Delays::can_be(LONGEST_NS) && !Delays::can_be(LONGEST_NS + 1));
    }
}

//! Finds how many bytes at the start of a function can be moved elsewhere.
//!
//! A hook replaces the first bytes of a function with a jump; whole instructions move into a
//! trampoline. Instructions that are relative to their own address, jumps, calls and returns cannot
//! be moved. This decoder knows the instructions that prologues consist of, and refuses all others:
//! a wrong length would crash the program, a refusal only leaves it unrecorded.

/// Maximum bytes of an instruction of x86-64.
pub(crate) const INSTRUCTION_BYTES: usize = 15;

/// Returns the bytes of the whole instructions that cover the first `least` bytes of `code`.
///
/// # Errors
///
/// The offset of the first instruction that cannot be moved.
pub(crate) fn movable_bytes(code: &[u8], least: usize) -> Result<usize, usize> {
    let mut length = 0;
    while length < least {
        length += instruction_bytes(code.get(length..).unwrap_or_default()).ok_or(length)?;
    }
    if length <= code.len() { Ok(length) } else { Err(length) }
}

/// Returns the length of an instruction that can be moved.
fn instruction_bytes(code: &[u8]) -> Option<usize> {
    let is_narrow = code.first() == Some(&0x66);
    let mut at = usize::from(is_narrow);
    let rex = code.get(at).copied().filter(|byte| byte & 0xf0 == 0x40);
    at += usize::from(rex.is_some());
    let is_wide = rex.is_some_and(|rex| rex & 8 != 0);
    let opcode = *code.get(at)?;
    at += 1;
    let operand = || operand_bytes(code.get(at..).unwrap_or_default());
    // Behind 0x66 the immediate values have two bytes, which no prologue needs.
    let immediate = || if is_narrow { None } else { Some(4) };
    let rest = match opcode {
        // push
        0x50..=0x57 => 0,
        // add, or, and, sub, xor, cmp, test, mov, lea between registers and memory
        0x01 | 0x03 | 0x09 | 0x0b | 0x21 | 0x23 | 0x29 | 0x2b | 0x31 | 0x33 | 0x39 | 0x3b | 0x84 | 0x85
        | 0x88 | 0x89 | 0x8a | 0x8b | 0x8d => operand()?,
        // the same with an immediate value
        0x80 | 0x83 | 0xc6 => operand()? + 1,
        0x81 | 0xc7 => operand()? + immediate()?,
        // mov of a value into a register
        0xb8..=0xbf if is_wide => 8,
        0xb8..=0xbf => immediate()?,
        // test with an immediate value; other instructions of this opcode have none
        0xf6 if register_field(code.get(at)) == Some(0) => operand()? + 1,
        0xf7 if register_field(code.get(at)) == Some(0) => operand()? + immediate()?,
        // nop
        0x90 => 0,
        0x0f => {
            1 + match code.get(at)? {
                // movups and movaps, nop, movzx
                0x10 | 0x11 | 0x28 | 0x29 | 0x1f | 0xb6 | 0xb7 => {
                    operand_bytes(code.get(at + 1..).unwrap_or_default())?
                }
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(at + rest)
}

/// Returns the middle field of an operand byte, which extends the opcode.
fn register_field(operand: Option<&u8>) -> Option<u8> {
    operand.map(|byte| byte >> 3 & 7)
}

/// Returns the bytes of an operand; `None` if it is relative to the instruction's address.
fn operand_bytes(code: &[u8]) -> Option<usize> {
    let byte = *code.first()?;
    let (mode, register) = (byte >> 6, byte & 7);
    if mode == 3 {
        return Some(1);
    }
    let has_index = register == 4;
    let base = if has_index { *code.get(1)? & 7 } else { register };
    let distance = match (mode, base) {
        (0, 5) if has_index => 4,
        (0, 5) => return None,
        (0, _) => 0,
        (1, _) => 1,
        _ => 4,
    };
    Some(1 + usize::from(has_index) + distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instructions as an assembler writes them, each with its length.
    const MOVABLE: [&[u8]; 24] = [
        &[0x41, 0x57],                                     // push r15
        &[0x53],                                           // push rbx
        &[0x48, 0x8d, 0xa4, 0x24, 0, 0, 0, 0],             // lea rsp, [rsp + 0], 4 bytes
        &[0x48, 0x81, 0xec, 0xa8, 0, 0, 0],                // sub rsp, 0xa8
        &[0x48, 0x83, 0xec, 0x78],                         // sub rsp, 0x78
        &[0x4c, 0x89, 0xc5],                               // mov rbp, r8
        &[0x4c, 0x8d, 0x84, 0x24, 0x8c, 0, 0, 0],          // lea r8, [rsp + 0x8c]
        &[0x48, 0x89, 0x5c, 0x24, 0x08],                   // mov [rsp + 8], rbx
        &[0xb8, 1, 0, 0, 0],                               // mov eax, 1
        &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8],             // movabs rax
        &[0x4c, 0x8b, 0xd1],                               // mov r10, rcx
        &[0xf6, 0x04, 0x25, 0x08, 0x03, 0xfe, 0x7f, 0x01], // test byte [0x7ffe0308], 1
        &[0x81, 0x79, 0x10, 0xee, 0xdd, 0xee, 0xdd],       // cmp dword [rcx + 16], 0xddeeddee
        &[0x33, 0xc0],                                     // xor eax, eax
        &[0x4d, 0x85, 0xc0],                               // test r8, r8
        &[0x0f, 0x11, 0xb4, 0x24, 0x80, 0, 0, 0],          // movups [rsp + 0x80], xmm6
        &[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],          // nop
        &[0x66, 0x90],                                     // nop
        &[0x0f, 0x1f, 0x40, 0],                            // nop
        &[0xc7, 0x44, 0x24, 0x20, 1, 0, 0, 0],             // mov dword [rsp + 32], 1
        &[0xc6, 0x41, 0x08, 1],                            // mov byte [rcx + 8], 1
        &[0xf7, 0xc2, 0, 0, 0, 1],                         // test edx, 0x1000000
        &[0x0f, 0xb6, 0xc2],                               // movzx eax, dl
        &[0x48, 0x8b, 0xc4],                               // mov rax, rsp
    ];

    #[test]
    fn prologue_has_the_lengths_of_an_assembler() {
        for instruction in MOVABLE {
            let mut code = [0xcc; 2 * INSTRUCTION_BYTES];
            code[..instruction.len()].copy_from_slice(instruction);
            assert_eq!(movable_bytes(&code, 1), Ok(instruction.len()), "{instruction:x?}");
            // Cut anywhere, it is refused or the same: nothing is read behind the end.
            for cut in 0..instruction.len() {
                assert!(movable_bytes(&instruction[..cut], 1).is_err(), "{instruction:x?} cut at {cut}");
            }
        }
    }

    #[test]
    fn prologue_refuses_what_depends_on_its_place() {
        let fixed: [&[u8]; 14] = [
            &[0x48, 0x8d, 0x35, 0x3e, 0xf1, 0x03, 0], // lea rsi, [rip + 0x3f13e]
            &[0xf6, 0x05, 0x6a, 0xe5, 0x03, 0, 0x08], // test byte [rip + 0x3e56a], 8
            &[0xe8, 0, 0, 0, 0],                      // call
            &[0xe9, 0, 0, 0, 0],                      // jmp
            &[0xeb, 0],                               // jmp
            &[0x75, 3],                               // jne
            &[0x0f, 0x85, 0x14, 2, 0, 0],             // jne
            &[0xff, 0x25, 0, 0, 0, 0],                // jmp [rip]: another tool's hook
            &[0xff, 0x14, 0x25, 0, 0x10, 0xfe, 0x7f], // call [0x7ffe1000]
            &[0x0f, 0x05],                            // syscall
            &[0xc3],                                  // ret
            &[0xcc],                                  // int3
            &[0x66, 0xb8, 1, 0],                      // mov ax, 1: another length
            &[0xf7, 0xd8],                            // neg eax: not known
        ];
        for instruction in fixed {
            let mut code = [0x90; 2 * INSTRUCTION_BYTES];
            code[1..=instruction.len()].copy_from_slice(instruction);
            assert_eq!(movable_bytes(&code, 2), Err(1), "{instruction:x?}");
        }
    }

    #[test]
    fn prologue_moves_whole_instructions() {
        // RtlFreeHeap of wine 8.
        let code =
            [0x48, 0x8d, 0xa4, 0x24, 0, 0, 0, 0, 0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54, 0x55, 0x57];
        assert_eq!(movable_bytes(&code, 14), Ok(14));
        assert_eq!(movable_bytes(&code, 13), Ok(14));
        assert_eq!(movable_bytes(&code, 15), Ok(16));
        assert_eq!(movable_bytes(&code, 19), Err(18));
    }

    #[test]
    fn prologue_of_a_system_call_moves_up_to_its_jump() {
        // NtAllocateVirtualMemory, of wine 8 and of Windows 10 with another number.
        let code = [
            0x4c, 0x8b, 0xd1, 0xb8, 0x0b, 0, 0, 0, 0xf6, 0x04, 0x25, 0x08, 0x03, 0xfe, 0x7f, 0x01, 0x75,
            0x03, 0x0f, 0x05, 0xc3,
        ];
        assert_eq!(movable_bytes(&code, 14), Ok(16));
        assert_eq!(movable_bytes(&code, 17), Err(16));
        // Without the check for another way of system calls, as before Windows 10.
        let short = [0x4c, 0x8b, 0xd1, 0xb8, 0x15, 0, 0, 0, 0x0f, 0x05, 0xc3];
        assert_eq!(movable_bytes(&short, 14), Err(8));
    }
}

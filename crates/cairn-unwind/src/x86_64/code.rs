//! Machine code around a return address: calls, and code of known shape.

use super::rule::X86_64Rule;
use crate::SHAPE_BYTES;

/// Code that has neither a table nor a frame pointer, but a known step.
struct Shape {
    code: [u8; SHAPE_BYTES],
    /// Bytes from the stack pointer up to the CFA.
    cfa_offset: i64,
}

/// The shapes. Each is the output of a program that writes the same bytes for every function.
const SHAPES: &[Shape] = &[
    // CPython 3.12 and 3.13 with `-X perf`: each Python function is called through a copy of this
    // trampoline. It leaves rbp to the function that it calls, and CPython is compiled without
    // frame pointers. The one of 3.14 has a frame pointer.
    Shape {
        code: [
            0x48, 0x83, 0xec, 0x08, // sub rsp, 8
            0xff, 0xd1, // call rcx
            0x48, 0x83, 0xc4, 0x08, // add rsp, 8
            0xc3, // ret
        ],
        cfa_offset: 16,
    },
];

/// The step of the code around a return address, if the code has a known shape.
pub(super) fn rule_of_shape(code: &[u8; SHAPE_BYTES]) -> Option<X86_64Rule> {
    SHAPES
        .iter()
        .find(|shape| shape.code == *code)
        .and_then(|shape| X86_64Rule::from_sp(shape.cfa_offset, None))
}

/// Decides whether `code` ends with a near call: `e8` with a distance, or `ff /2` with any operand.
pub(super) fn ends_with_call(code: &[u8]) -> bool {
    /// `call rel32`.
    const RELATIVE: u8 = 0xe8;
    /// `call r/m64`, with 2 in the middle bits of the byte behind.
    const INDIRECT: u8 = 0xff;
    let from_end = |distance: usize| code.get(code.len().checked_sub(distance)?..);
    if let Some([RELATIVE, ..]) = from_end(5) {
        return true;
    }
    (2..=7).any(|length| match from_end(length) {
        Some([INDIRECT, operand, rest @ ..]) if operand >> 3 & 7 == 2 => {
            2 + operand_bytes(*operand, rest.first().copied()) == length
        }
        _ => false,
    })
}

/// The bytes of an operand behind its first byte (ModRM); `scale` is the byte behind that (SIB).
fn operand_bytes(operand: u8, scale: Option<u8>) -> usize {
    let (mode, register) = (operand >> 6, operand & 7);
    let scale_bytes = usize::from(mode != 3 && register == 4);
    let has_wide_base = mode == 0 && register == 4 && scale.is_some_and(|scale| scale & 7 == 5);
    let distance_bytes = match mode {
        0 if register == 5 || has_wide_base => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    scale_bytes + distance_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_every_operand_are_recognized() {
        let calls: &[&[u8]] = &[
            &[0xe8, 0x10, 0, 0, 0],                            // call rel32
            &[0xff, 0xd1],                                     // call rcx
            &[0x41, 0xff, 0xd4],                               // call r12
            &[0xff, 0x10],                                     // call [rax]
            &[0xff, 0x14, 0xc8],                               // call [rax + 8 * rcx]
            &[0xff, 0x50, 0x18],                               // call [rax + 24]
            &[0xff, 0x54, 0x24, 0x08],                         // call [rsp + 8]
            &[0xff, 0x15, 0x10, 0x20, 0, 0],                   // call [rip + 0x2010]
            &[0xff, 0x90, 0x00, 0x02, 0, 0],                   // call [rax + 0x200]
            &[0xff, 0x14, 0xc5, 0, 0, 0, 0],                   // call [8 * rax + 0]
            &[0x41, 0xff, 0x94, 0xc4, 0x00, 0x02, 0x00, 0x00], // call [r12 + 8 * rax + 0x200]
        ];
        for call in calls {
            let mut code = nops();
            let start = code.len() - call.len();
            code[start..].copy_from_slice(call);
            assert!(ends_with_call(&code), "{call:x?}");
            assert!(ends_with_call(call), "{call:x?}");
        }
    }

    #[test]
    fn other_instructions_are_no_calls() {
        let others: &[&[u8]] = &[
            &[],
            &[0xff],
            &[0xff, 0xe1],       // jmp rcx
            &[0xff, 0xd1, 0x90], // call rcx; nop
            &[0xff, 0x50],       // the first half of a call
            &[0x48, 0x89, 0xe5], // mov rbp, rsp
            &[0xe8, 0, 0, 0],    // the end of a call is missing
            &[0xff, 0x15, 0x10, 0x20, 0],
        ];
        for other in others {
            assert!(!ends_with_call(other), "{other:x?}");
        }
    }

    fn nops() -> [u8; 8] {
        [0x90; 8]
    }

    #[test]
    fn trampoline_of_python_has_its_step() {
        let mut code = [0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3];
        assert_eq!(rule_of_shape(&code), X86_64Rule::from_sp(16, None));
        code[9] = 0x10;
        assert_eq!(rule_of_shape(&code), None);
    }
}

//! The current state of a thread, without a call where that is possible.
//!
//! From 3.12 on the interpreter has it in a thread-local variable without an exported name. The
//! function that returns it calls `__tls_get_addr` in a shared library, at each capture. That call
//! is in the code of the function, in one of a few forms. If the code is one of these, and the
//! variable lies in the part of the thread's memory that the loader has laid out at its start, then
//! it has the same distance from the thread pointer in all threads, and a capture loads it.

use core::ffi::c_void;

use super::memory::Words;

/// Returns the current state of the calling thread.
pub(super) type StateFunction = unsafe extern "C" fn() -> *mut c_void;

/// How to come to the current state.
#[derive(Clone, Copy)]
pub(super) enum CurrentState {
    /// The variable lies at this distance from the thread pointer.
    Variable(u64),
    Function(StateFunction),
}

/// Bytes below the thread pointer that belong to no block of the allocator; 1,600.
///
/// glibc reserves 1,664 there for libraries that are loaded later.
const OWN_BYTES: u64 = 1600;

/// Forms of the code in front of the address of the variable's index.
const BEGINNINGS: [&[u8]; 4] = [
    // sub $8, %rsp
    &[0x48, 0x83, 0xec, 0x08],
    // push %rax
    &[0x50],
    // push %rbp; mov %rsp, %rbp
    &[0x55, 0x48, 0x89, 0xe5],
    // push %rbp
    &[0x55],
];
/// endbr64
const LANDING: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
/// data16 lea INDEX(%rip), %rdi
const INDEX: &[u8] = &[0x66, 0x48, 0x8d, 0x3d];
/// data16 data16 rex.W call GET_ADDRESS
const CALL: &[u8] = &[0x66, 0x66, 0x48, 0xe8];
/// mov (%rax), %rax
const LOAD: &[u8] = &[0x48, 0x8b, 0x00];
/// Forms of the code behind it.
const ENDS: [&[u8]; 4] = [
    // add $8, %rsp; ret
    &[0x48, 0x83, 0xc4, 0x08, 0xc3],
    // pop %rcx; ret
    &[0x59, 0xc3],
    // pop %rdx; ret
    &[0x5a, 0xc3],
    // pop %rbp; ret
    &[0x5d, 0xc3],
];

impl CurrentState {
    /// # Safety
    ///
    /// - `function` is that of a loaded interpreter, which may be called.
    pub(super) unsafe fn of(function: StateFunction, memory: &impl Words) -> Self {
        let mut code = [0; 48];
        let address = function as usize as u64;
        let call = if memory.copy(address, &mut code) { call_in(&code, address) } else { None };
        let Some(TlsCall { index, get_address }) = call else { return Self::Function(function) };
        // SAFETY: the code of the function calls this address with this index and no other
        // argument, so it is `__tls_get_addr`; the caller promises that it may be called.
        let variable = unsafe {
            let get_address: unsafe extern "C" fn(u64) -> u64 =
                core::mem::transmute::<usize, _>(get_address as usize);
            get_address(index)
        };
        let below = thread_pointer().wrapping_sub(variable);
        if (8..OWN_BYTES).contains(&below) && variable.is_multiple_of(8) {
            Self::Variable(below.wrapping_neg())
        } else {
            Self::Function(function)
        }
    }

    /// # Safety
    ///
    /// - The interpreter is still loaded.
    #[inline(always)]
    pub(super) unsafe fn get(self) -> u64 {
        match self {
            Self::Variable(distance) => {
                let state;
                // SAFETY: an aligned word of this thread's own memory, by `of`.
                unsafe {
                    core::arch::asm!(
                        "mov {}, fs:[{}]",
                        out(reg) state,
                        in(reg) distance,
                        options(nostack, preserves_flags, readonly)
                    );
                }
                state
            }
            // SAFETY: the function reads a variable; the caller promises that it is there.
            Self::Function(function) => unsafe { function() as u64 },
        }
    }
}

fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: the first word behind the thread pointer is the thread pointer.
    unsafe {
        core::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly));
    }
    pointer
}

/// A call of `__tls_get_addr`.
#[derive(PartialEq, Eq, Debug)]
struct TlsCall {
    index: u64,
    get_address: u64,
}

/// Finds the call in a function that loads one thread-local variable and does nothing else.
fn call_in(code: &[u8], address: u64) -> Option<TlsCall> {
    let at = |rest: &[u8]| address.wrapping_add((code.len() - rest.len()) as u64);
    let rest = code.strip_prefix(LANDING).unwrap_or(code);
    let rest = BEGINNINGS.iter().find_map(|form| rest.strip_prefix(*form)?.strip_prefix(INDEX))?;
    let (distance, rest) = rest.split_first_chunk()?;
    let index = at(rest).wrapping_add(i64::from(i32::from_le_bytes(*distance)) as u64);
    let (distance, rest) = rest.strip_prefix(CALL)?.split_first_chunk()?;
    let get_address = at(rest).wrapping_add(i64::from(i32::from_le_bytes(*distance)) as u64);
    let rest = rest.strip_prefix(LOAD)?;
    ENDS.iter().any(|form| rest.starts_with(form)).then_some(TlsCall { index, get_address })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `_PyThreadState_UncheckedGet` of 3.12.1, as gcc has compiled it.
    const GCC: [u8; 28] = [
        0x48, 0x83, 0xec, 0x08, 0x66, 0x48, 0x8d, 0x3d, 0xf4, 0xc9, 0x26, 0x00, 0x66, 0x66, 0x48, 0xe8, 0xdc,
        0x10, 0xe3, 0xff, 0x48, 0x8b, 0x00, 0x48, 0x83, 0xc4, 0x08, 0xc3,
    ];

    #[test]
    fn call_is_found_in_the_code_of_an_interpreter() {
        let call = TlsCall { index: 0x0054_3ef0, get_address: 0x0010_85e0 };
        assert_eq!(call_in(&GCC, 0x002d_74f0), Some(call));
    }

    #[test]
    fn code_that_does_something_else_has_no_call() {
        for place in (0..8).chain(12..16).chain(20..GCC.len()) {
            let mut code = GCC;
            code[place] ^= 1;
            assert_eq!(call_in(&code, 0), None, "byte {place}");
        }
        for length in 0..GCC.len() {
            assert_eq!(call_in(&GCC[..length], 0), None, "{length} bytes");
        }
    }
}

//! Facts of the process that Linux and its C library state.

use crate::build_id::{self, BUILD_ID_BYTES};
use crate::facts::Facts;
use crate::os::File;

/// Adds the build id of the program.
pub(crate) fn add_build_id(facts: &mut Facts<'_>) {
    // The program headers lie in the first page of the program, behind its ELF header.
    // SAFETY: `getauxval` only reads the auxiliary vector, which exists in every process.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) };
    let start = headers & !0xfff;
    // The field e_type is 2 for a program at fixed addresses, whose bias is 0, and 3 for others.
    let mut kind = [0; 2];
    if cairn_capture::read_own_memory(start + 16, &mut kind) != 2 {
        return;
    }
    let bias = if kind == [2, 0] { 0 } else { start };
    let mut place = [0_u8; BUILD_ID_BYTES];
    facts.add_build_id(build_id::at(start, bias, &mut place));
}

/// Adds the names of machine and kernel, and the size of a page.
pub(crate) fn add_system(facts: &mut Facts<'_>) {
    let mut name = core::mem::MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: initialised with zeros, which are a value of the type; `uname` writes one structure.
    let name = unsafe {
        libc::uname(name.as_mut_ptr());
        name.assume_init()
    };
    facts.add(b"host", bytes_of(&name.nodename));
    facts.add(b"kernel", bytes_of(&name.release));
    // SAFETY: `getauxval` only reads the auxiliary vector, which exists in every process.
    let page_bytes = unsafe { libc::getauxval(libc::AT_PAGESZ) };
    facts.add_number(b"page_bytes", page_bytes as u32);
}

/// Adds the variables of these names, which commas separate.
pub(crate) fn add_environment(facts: &mut Facts<'_>, names: &[u8], scratch: &mut [u8]) {
    let Ok(file) = File::open(c"/proc/self/environ", libc::O_RDONLY, 0) else { return };
    let all = file.read_all(scratch);
    for variable in all.split(|&byte| byte == 0) {
        let Some(end) = variable.iter().position(|&byte| byte == b'=') else { continue };
        let (name, value) =
            (variable.get(..end).unwrap_or_default(), variable.get(end + 1..).unwrap_or_default());
        if names.split(|&byte| byte == b',').any(|wanted| wanted == name) {
            facts.add_variable(name, value);
        }
    }
}

/// Adds the command line.
pub(crate) fn add_arguments(facts: &mut Facts<'_>, scratch: &mut [u8]) {
    let Ok(file) = File::open(c"/proc/self/cmdline", libc::O_RDONLY, 0) else { return };
    let all = file.read_all(scratch);
    // The last argument has a NUL at its end too, unless the line was cut.
    let end = all.len() - usize::from(all.last() == Some(&0));
    let all = all.get_mut(..end).unwrap_or_default();
    if all.contains(&b' ') {
        all.split(|&byte| byte == 0).for_each(|argument| facts.add(b"argument", argument));
    }
    all.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
    facts.add(b"command", all);
}

fn bytes_of(field: &[libc::c_char]) -> &[u8] {
    // SAFETY: `c_char` has the size of `u8`, and any byte is a value of both.
    let bytes = unsafe { core::slice::from_raw_parts(field.as_ptr().cast::<u8>(), field.len()) };
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

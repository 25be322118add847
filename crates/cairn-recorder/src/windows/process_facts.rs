//! Facts of the process that Windows states.

use cairn_capture::read_own_memory;

use super::process_block;
use crate::build_id::{self, BUILD_ID_BYTES};
use crate::facts::Facts;
use crate::path_text::PathText;

/// Adds the build id of the program.
pub(crate) fn add_build_id(facts: &mut Facts<'_>) {
    let Some(base) = process_block::program_base() else { return };
    let mut place = [0_u8; BUILD_ID_BYTES];
    facts.add_build_id(build_id::at(base, &mut place));
}

/// Adds the system, its version, the machine's name, and the size of a page.
pub(crate) fn add_system(facts: &mut Facts<'_>) {
    /// Page of the kernel that all processes can read, and places of the version in it.
    const SHARED_PAGE: u64 = 0x7ffe_0000;
    const VERSION: [u64; 3] = [0x26c, 0x270, 0x260];
    facts.add(b"system", b"windows");
    let mut room = [0; 64];
    let mut text = PathText::new(&mut room);
    text.push(b"Windows");
    for (separator, place) in [&b" "[..], b".", b"."].into_iter().zip(VERSION) {
        let mut number = [0; 4];
        if read_own_memory(SHARED_PAGE + place, &mut number) == number.len() {
            text.push(separator);
            text.push_number(u32::from_le_bytes(number));
        }
    }
    let length = text.length();
    facts.add(b"kernel", room.get(..length).unwrap_or_default());
    if let Some(host) = crate::os::environment_variable(b"COMPUTERNAME", &mut room) {
        facts.add(b"host", host);
    }
    facts.add_number(b"page_bytes", 4096);
}

/// Adds the variables of these names, which commas separate.
pub(crate) fn add_environment(facts: &mut Facts<'_>, names: &[u8], scratch: &mut [u8]) {
    process_block::variables(scratch, |variable| {
        // Variables for the drives' directories begin with `=`.
        let end = variable.iter().skip(1).position(|&byte| byte == b'=').map(|place| place + 1);
        let Some((name, value)) = end.and_then(|end| variable.split_at_checked(end)) else { return false };
        if names.split(|&byte| byte == b',').any(|wanted| wanted == name) {
            facts.add_variable(name, value.get(1..).unwrap_or_default());
        }
        false
    });
}

/// Adds the command line, as it was given to the system.
pub(crate) fn add_arguments(facts: &mut Facts<'_>, scratch: &mut [u8]) {
    facts.add(b"command", process_block::command_line(scratch));
}

//! The facts of the process when recording begins.
//!
//! | name | value |
//! |---|---|
//! | `cairn` | version of this crate |
//! | `sample_bytes` | mean bytes between picked ones, when a part of the blocks is recorded |
//! | `mode` | `stream`, or `ring` for a recording of its last part only |
//! | `executable` | path of the program |
//! | `executable.build_id` | its build id, in hexadecimal digits |
//! | `system` | `windows` there; absent on Linux |
//! | `command` | the command line, its words separated by spaces |
//! | `argument` | one for each word of the command line, in order, where words hold spaces |
//! | `working_directory` | at the start |
//! | `parent` | number of the process that started this one; 0 if that is in no namespace of this one |
//! | `host`, `kernel` | as `uname -n` and `uname -r` print them |
//! | `page_bytes` | size of a page |
//! | `counter_hz` | frequency of the counter, where the processor states it |
//! | `env.NAME` | each requested variable that is set |

use crate::clock;
use crate::facts::Facts;
use crate::os;
use crate::process_facts;

/// Adds all facts of the [table](self); `scratch` holds texts meanwhile.
pub(crate) fn add_all(facts: &mut Facts<'_>, mode: &[u8], environment: &[u8], scratch: &mut [u8]) {
    facts.add(b"cairn", env!("CARGO_PKG_VERSION").as_bytes());
    facts.add(b"mode", mode);
    facts.add(b"executable", os::executable(scratch));
    process_facts::add_build_id(facts);
    let length = os::working_directory(scratch);
    facts.add(b"working_directory", scratch.get(..length).unwrap_or_default());
    facts.add_number(b"parent", os::parent_id());
    process_facts::add_system(facts);
    if let Some(hz) = clock::stated_hz().and_then(|hz| u32::try_from(hz).ok()) {
        facts.add_number(b"counter_hz", hz);
    }
    if !environment.is_empty() {
        process_facts::add_environment(facts, environment, scratch);
    }
    process_facts::add_arguments(facts, scratch);
}

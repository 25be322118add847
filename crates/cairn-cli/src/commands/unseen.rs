//! Explains a recording without allocations by the program's file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairn_analysis::heap::{HeapRecording, Sampling};
use cairn_format::Hexadecimal;
use cairn_run::{Obstacle, Program};

/// Returns the message for a recording without allocations.
pub(crate) fn why_nothing_was_seen(heap: &HeapRecording, sampling: Sampling) -> String {
    let obstacle = recorded_program(heap).and_then(|program| hidden_by(&program));
    // Another processor is no reason: the program was recorded there.
    if let Some(obstacle) = obstacle.filter(|obstacle| !matches!(obstacle, Obstacle::OtherMachine { .. })) {
        return format!("no allocation was seen: {obstacle}");
    }
    match sampling {
        Sampling::Poisson { .. } => "no allocation was picked for the sample".to_owned(),
        _ => "no allocation was seen".to_owned(),
    }
}

/// Returns the reason why the calls of a running program cannot be seen, if its file has one.
pub(crate) fn hidden_by(program: &Program) -> Option<Obstacle> {
    // Other obstacles do not apply to a program that runs.
    program.inspect().err().filter(|obstacle| {
        matches!(
            obstacle,
            Obstacle::Static { .. }
                | Obstacle::Loader { .. }
                | Obstacle::OtherMachine { .. }
                | Obstacle::OtherLoader { .. }
                | Obstacle::OwnAllocator { .. }
        )
    })
}

/// Returns the recorded program, if its file is on this machine and unchanged.
fn recorded_program(heap: &HeapRecording) -> Option<Program> {
    let recording = heap.recording();
    let path = Path::new(OsStr::from_bytes(recording.fact("executable")?));
    let program = Program::find(path.is_absolute().then_some(path.as_os_str())?).ok()?;
    let recorded = recording.fact("executable.build_id").filter(|digits| !digits.is_empty());
    let present = program.build_id().map(|bytes| Hexadecimal(&bytes).to_string());
    // Without build ids, the paths decide.
    (recorded == present.as_deref().map(str::as_bytes)).then_some(program)
}

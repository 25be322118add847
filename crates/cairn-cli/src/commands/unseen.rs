//! Why a recording has no allocation in it, where that can be known: the program's file says it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairn_analysis::heap::{HeapRecording, Sampling};
use cairn_run::{Obstacle, Program};

/// What to say of a recording without an allocation.
pub(crate) fn why_nothing_was_seen(heap: &HeapRecording, sampling: Sampling) -> String {
    let obstacle = recorded_program(heap).and_then(|program| hidden_by(&program));
    // That it is for another processor than this one is no reason: it was recorded there.
    if let Some(obstacle) = obstacle.filter(|obstacle| !matches!(obstacle, Obstacle::OtherMachine { .. })) {
        return format!("no allocation was seen: {obstacle}");
    }
    match sampling {
        Sampling::Poisson { .. } => "no allocation was picked for the sample".to_owned(),
        _ => "no allocation was seen".to_owned(),
    }
}

/// Why the calls of a program that runs cannot be seen, if its file is a reason.
pub(crate) fn hidden_by(program: &Program) -> Option<Obstacle> {
    // What else may be the matter with a file is none for a program that runs.
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

/// The program that a recording is of, when its file is on this machine and still the same.
fn recorded_program(heap: &HeapRecording) -> Option<Program> {
    let recording = heap.recording();
    let path = Path::new(OsStr::from_bytes(recording.fact("executable")?));
    let program = Program::find(path.is_absolute().then_some(path.as_os_str())?).ok()?;
    let recorded = recording.fact("executable.build_id").filter(|digits| !digits.is_empty());
    let present =
        program.build_id().map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    // Without a build id in either, the path is all that is known.
    (recorded == present.as_deref().map(str::as_bytes)).then_some(program)
}

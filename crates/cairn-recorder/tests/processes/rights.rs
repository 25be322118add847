//! A program that runs with more rights than its caller: the caller's environment and directory do
//! not say where it writes.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use cairn_recorder::{StartError, is_recording, mark, start, start_default};

use crate::{Runner, options};

pub(crate) fn child(path: &Path) {
    mark("unasked");
    println!("lazily {}, by default {:?}", is_recording(), start_default());
    println!("with a path {:?}", start(&options(&path.with_extension("given"))));
}

/// Checks where the set-user-ID program wrote. It wrote where `CAIRN_RECORDING` pointed, and in the
/// working directory of its caller.
pub(crate) fn check(runner: &Runner) {
    let directory = std::env::temp_dir().join(format!("cairn-rights-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o777)).unwrap();
    let program = directory.join("program");
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
    assert!(copied.unwrap().success());
    if chown(&program, Some(65534), None).is_err() {
        println!("skipped: only root can give files to another user");
        std::fs::remove_dir_all(directory).unwrap();
        return;
    }
    let path = directory.join("recording");
    let given = directory.join("recording.given");
    let run = |mode| {
        std::fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
        let mut command = Command::new(&program);
        command.args(["child", runner.name]).arg(&path).current_dir(&directory);
        let output = command.env("CAIRN_RECORDING", &path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let started = StartError::AlreadyStarted;
    let plain = run(0o755);
    assert_eq!(plain, format!("lazily true, by default Err({started:?})\nwith a path Err({started:?})\n"));
    assert!(path.exists());
    std::fs::remove_file(&path).unwrap();

    let raised = run(0o4755);
    if raised == plain {
        println!("skipped: the file system ignores set-user-ID bits");
    } else {
        let refused = StartError::RaisedRights;
        assert_eq!(raised, format!("lazily false, by default Err({refused:?})\nwith a path Ok(())\n"));
        assert!(!path.exists() && given.exists());
        let names = std::fs::read_dir(&directory).unwrap().count();
        assert_eq!(names, 2, "something was made in the working directory");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

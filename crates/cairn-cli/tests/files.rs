//! Files of the command on a machine where other users watch, plant links or own the directories.
//! Most of these tests need root, which gives files to another user; they print a message when they
//! are skipped.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "tests say what they have skipped")]

#[allow(dead_code, reason = "shared by tests that need other parts of it")]
mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{compile, wait_for, workspace};

const CAIRN: &str = env!("CARGO_BIN_EXE_cairn");
/// Another user: nobody.
const OTHER: u32 = 65534;

/// A directory of one test, below `/tmp`, since a checkout may be another user's.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cairn-cli-files-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_root() -> bool {
    let probe = Scratch::new("probe");
    let is_root = chown(&probe.0, Some(OTHER), None).is_ok();
    if !is_root {
        println!("skipped: only root can give files to another user");
    }
    is_root
}

/// `cairn`, run by a shell that hides nothing from others.
fn cairn(directory: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 0; exec \"$0\" \"$@\"", CAIRN]).current_dir(directory);
    command.env("HOME", directory.join("home")).env_remove("XDG_CACHE_HOME");
    command
}

/// The recording of the fixtures has losses, which status 3 says.
fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(0 | 3)), "{command:?}: {errors}");
    errors
}

fn fails(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!matches!(output.status.code(), Some(0 | 3)), "{command:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A program that runs until there is a file `stop`; not for ever, should its test fail.
const UNTIL_STOPPED: &str = "n=0; while [ ! -e stop ] && [ $n -lt 30000 ]; do sleep 0.02; n=$((n + 1)); done";

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn packed() -> PathBuf {
    workspace().join("fixtures/recordings/v1/packed.cairn")
}

/// All of these had mode 0666 by this umask.
#[test]
fn outputs_are_private_whatever_the_umask() {
    let scratch = Scratch::new("outputs");
    let recording = packed();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let recording = text(&recording);
    let runs: [(&str, Vec<&str>); 5] = [
        ("flame.svg", vec!["flame", &recording, "-o", "flame.svg"]),
        ("page.html", vec!["report", &recording, "--html", "page.html"]),
        ("folded.txt", vec!["export", &recording, "--to", "folded", "-o", "folded.txt"]),
        ("packed.cairn", vec!["pack", &recording, "-o", "packed.cairn", "--sums", "always"]),
        ("now.cairn", vec!["snapshot", "--output", "now.cairn"]),
    ];
    for (name, mut arguments) in runs {
        let own = std::process::id().to_string();
        let mut child = None;
        if arguments[0] == "snapshot" {
            let sleeper = Command::new("sleep").arg("300").spawn().unwrap();
            arguments.push(Box::leak(sleeper.id().to_string().into_boxed_str()));
            child = Some(sleeper);
        }
        succeeds(cairn(&scratch.0).args(&arguments));
        if let Some(mut child) = child {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(mode(&scratch.at(name)), 0o600, "{name}, by {own}");
        // And none of them is replaced unasked.
        if name != "now.cairn" {
            let errors = fails(cairn(&scratch.0).args(&arguments));
            assert!(errors.contains("--force"), "{errors}");
        }
    }
    let left: Vec<_> = fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("part")), "{left:?}");
}

/// `FILE.new` had mode 0666 while the program ran.
#[test]
fn recording_is_private_while_it_is_made() {
    let scratch = Scratch::new("growing");
    let mut command = cairn(&scratch.0);
    let mut child = command.args(["heap", "-q", "-o", "x.cairn", "sh", "-c", UNTIL_STOPPED]).spawn().unwrap();
    let fresh = scratch.at("x.cairn.new");
    wait_for("the packed recording", || fresh.exists().then_some(()));
    assert_eq!((mode(&fresh), mode(&scratch.at("x.cairn"))), (0o600, 0o600));
    fs::write(scratch.at("stop"), "").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(mode(&scratch.at("x.cairn")), 0o600);
}

/// The mode of the victim was changed through the link, and the link became the recording.
#[test]
fn recording_does_not_follow_a_link_planted_in_its_place() {
    let scratch = Scratch::new("planted");
    let victim = scratch.at("victim");
    fs::write(&victim, "set-uid").unwrap();
    fs::set_permissions(&victim, Permissions::from_mode(0o4755)).unwrap();
    let mut command = cairn(&scratch.0);
    let child = command.args(["heap", "-q", "-o", "x.cairn", "sh", "-c", UNTIL_STOPPED]);
    let child = child.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let fresh = scratch.at("x.cairn.new");
    wait_for("the packed recording", || fresh.exists().then_some(()));
    fs::remove_file(&fresh).unwrap();
    symlink(&victim, &fresh).unwrap();
    fs::write(scratch.at("stop"), "").unwrap();
    let errors = String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr).into_owned();
    assert_eq!((fs::read(&victim).unwrap(), mode(&victim)), (b"set-uid".to_vec(), 0o4755));
    assert!(errors.contains("x.cairn.new was replaced by another file"), "{errors}");
    assert!(!fs::symlink_metadata(scratch.at("x.cairn")).unwrap().is_symlink());
}

/// With `--force`, the device was removed and a file put in its place; without, it was an error.
#[test]
fn output_goes_into_devices_and_not_over_them() {
    let scratch = Scratch::new("devices");
    let recording = packed();
    let recording = recording.to_str().unwrap();
    // Like /dev/null, for which a mistake here would be the end.
    let device = scratch.at("null");
    let made = Command::new("mknod").arg(&device).args(["c", "1", "3"]).output().unwrap().status.success();
    let usable = made && fs::write(&device, "x").is_ok();
    if usable {
        for force in [&[][..], &["--force"]] {
            succeeds(cairn(&scratch.0).args(["flame", recording, "-o", "null"]).args(force));
            succeeds(cairn(&scratch.0).args(["pack", recording, "-o", "null"]).args(force));
            assert!(fs::symlink_metadata(&device).unwrap().file_type().is_char_device());
        }
    } else {
        println!("skipped: no device can be made here");
    }
    // As standard output, a file of the shell's or a pipe.
    succeeds(cairn(&scratch.0).args(["flame", recording, "--folded", "-o", "/dev/null"]));
    let plain = cairn(&scratch.0).args(["flame", recording, "--folded"]).output().unwrap().stdout;
    assert!(!plain.is_empty());
    let piped = cairn(&scratch.0)
        .args(["flame", recording, "--folded", "-o", "/dev/stdout"])
        .output()
        .unwrap()
        .stdout;
    assert_eq!(piped, plain);
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "echo first > out; \"$0\" flame \"$1\" --folded -o /dev/stdout >> out",
        CAIRN,
        recording,
    ]);
    succeeds(shell.current_dir(&scratch.0));
    assert_eq!(fs::read(scratch.at("out")).unwrap(), [b"first\n".as_slice(), &plain].concat());
}

/// The link was replaced by a file, regardless of its owner, and the target was not written.
#[test]
fn output_follows_links_of_its_user_alone() {
    let scratch = Scratch::new("links");
    let recording = packed();
    let recording = recording.to_str().unwrap();
    fs::write(scratch.at("target"), "before").unwrap();
    symlink("target", scratch.at("link")).unwrap();
    let flame = |output: &str| {
        let mut command = cairn(&scratch.0);
        command.args(["flame", recording, "--force", "-o", output]);
        command
    };
    succeeds(&mut flame("link"));
    assert!(fs::symlink_metadata(scratch.at("link")).unwrap().is_symlink());
    assert!(fs::read_to_string(scratch.at("target")).unwrap().contains("<svg"));
    if !is_root() {
        return;
    }
    let shared = scratch.at("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    fs::write(scratch.at("victim"), "keep").unwrap();
    symlink(scratch.at("victim"), shared.join("planted")).unwrap();
    lchown(shared.join("planted"), Some(OTHER), None).unwrap();
    let errors = fails(&mut flame("shared/planted"));
    assert!(errors.contains("may be another user's"), "{errors}");
    assert_eq!(fs::read(scratch.at("victim")).unwrap(), b"keep");
}

/// Root made a lock file in the user's directory, emptied a file there, and loaded a library from
/// it.
#[test]
fn home_of_another_user_is_no_cache() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("home");
    let home = scratch.at("home");
    let symbols = home.join(".cache/cairn/symbols");
    fs::create_dir_all(&symbols).unwrap();
    for path in [home.clone(), home.join(".cache"), home.join(".cache/cairn"), symbols.clone()] {
        chown(&path, Some(OTHER), None).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    }
    let errors = succeeds(cairn(&scratch.0).args(["symbolize", "-e", CAIRN, "0x1000", "0x2000"]));
    let note = "no index of symbols is used: ";
    assert_eq!(errors.matches(note).count(), 1, "{errors}");
    assert!(errors.contains("belongs to another user (65534)"), "{errors}");
    let errors = fails(cairn(&scratch.0).args(["symbolize", "--index-only", CAIRN]));
    assert!(errors.contains("--cache-dir"), "{errors}");
    let script =
        "while read line; do case $line in *libcairn*) echo \"$line\";; esac; done < /proc/self/maps";
    let output = cairn(&scratch.0).args(["heap", "-o", "x.cairn", "sh", "-c", script]).output().unwrap();
    let maps = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(maps.contains("/tmp/cairn-0/libcairn_preload"), "{maps} {output:?}");
    assert_eq!(fs::read_dir(&symbols).unwrap().count(), 0);
    assert_eq!(fs::read_dir(home.join(".cache/cairn")).unwrap().count(), 1);
}

/// The word was written into the file that the link leads to.
#[test]
fn ctl_writes_to_no_file_but_the_mapped_one() {
    let scratch = Scratch::new("ctl");
    let mut command = cairn(&scratch.0);
    command.args(["heap", "-q", "--start-paused", "-o", "x.cairn", "sh", "-c", UNTIL_STOPPED]);
    let mut child = command.spawn().unwrap();
    let spool = scratch.at("x.cairn");
    let process = wait_for("the recording", || {
        spool.exists().then(|| support::Recording::read(&spool).process.to_string())
    });
    // At the spool's path in the kernel's list of mappings, there is a link to another spool of
    // that process.
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let mapping = maps.lines().find(|line| line.contains("rw-s")).unwrap();
    let named = PathBuf::from(&mapping[mapping.find('/').unwrap()..]);
    let victim = scratch.at("victim");
    fs::copy(&spool, &victim).unwrap();
    fs::set_permissions(&victim, Permissions::from_mode(0o600)).unwrap();
    if named != spool {
        symlink(&victim, &named).unwrap();
    } else {
        println!("the file system has no files without names: the mapping has the right one");
    }
    let before = fs::read(&victim).unwrap();
    succeeds(cairn(&scratch.0).args(["heap", "ctl", &process, "start"]));
    succeeds(cairn(&scratch.0).args(["heap", "ctl", &process, "mark", "here"]));
    assert!(fs::read(&victim).unwrap() == before, "another file was written to");
    wait_for("events", || (support::Recording::read(&spool).events > 0).then_some(()));
    fs::write(scratch.at("stop"), "").unwrap();
    assert!(child.wait().unwrap().success());
}

/// `CAIRN_HEAP` was in the environment of the child that gained rights.
#[test]
fn children_with_more_rights_get_no_variables() {
    let scratch = Scratch::new("rights");
    let program = compile(&scratch.0, "rights.c", "rights", &[]);
    let shown = |child: &Path| {
        let mut command = cairn(&scratch.0);
        command.args(["heap", "-q", "--children"]).arg(&program).arg("start").arg(child);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // With --children the variables stay in the environment: `system` hands on what it finds.
    assert!(shown(&program).contains("children"), "{}", shown(&program));
    let raised = scratch.at("raised");
    assert!(Command::new("cp").arg(&program).arg(&raised).status().unwrap().success());
    for bits in [0o4755, 0o2755, 0o4711] {
        fs::set_permissions(&raised, Permissions::from_mode(bits)).unwrap();
        assert_eq!(shown(&raised), "options=none libraries=none\n", "{bits:o}");
    }
}

//! Completions in real shells, and manual pages in real groff.
//!
//! A shell that is missing is reported, and is an error where `CAIRN_CI` is set: `cargo xtask ci`
//! installs them.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "tests report what they skip")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// Returns an empty directory for one test.
fn scratch(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// True if a program is installed. A missing one is reported.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !is_there {
        assert!(
            std::env::var_os("CAIRN_CI").is_none(),
            "{program} is not installed: apt-get install {program}"
        );
        println!("skipped: {program} is not installed");
    }
    is_there
}

/// A directory with recordings, another file and a program; and a process that runs.
struct Scene {
    directory: PathBuf,
    process: Child,
}

/// A number that no other process has in its command.
const SECONDS: &str = "471147.11";

impl Scene {
    fn new(test: &str) -> Self {
        let directory = scratch(test);
        for name in ["server.4711.cairn", "server.4712.cairn", "other.cairn", "notes.txt", "xyzzy.txt"] {
            fs::write(directory.join(name), "").unwrap();
        }
        let program = directory.join("xyzzy-program");
        fs::write(&program, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let process = Command::new("sleep").arg(SECONDS).stdin(Stdio::null()).spawn().unwrap();
        Self { directory, process }
    }

    /// A shell in the directory that finds cairn and the program.
    fn shell(&self, program: &str) -> Command {
        let own = Path::new(env!("CARGO_BIN_EXE_cairn")).parent().unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories = [own.to_owned(), self.directory.clone()].into_iter();
        let path = std::env::join_paths(directories.chain(std::env::split_paths(&path))).unwrap();
        let mut command = Command::new(program);
        command.current_dir(&self.directory).env("PATH", path).env("HOME", &self.directory);
        command.env("XDG_CONFIG_HOME", &self.directory).env("XDG_DATA_HOME", &self.directory);
        command.env("LC_ALL", "C.UTF-8").env("TERM", "xterm");
        command
    }

    fn pid(&self) -> String {
        self.process.id().to_string()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Checks the candidates that `complete` returns for a line.
///
/// They are one a line, maybe with a description behind each.
fn check_candidates(scene: &Scene, complete: impl Fn(&str) -> String) {
    let candidates = |line: &str| -> Vec<String> {
        let words = complete(line);
        words.lines().map(|line| line.split('\t').next().unwrap_or_default().trim().to_owned()).collect()
    };
    assert_eq!(candidates("cairn rep"), ["report"]);
    assert_eq!(candidates("cairn report s"), ["server.4711.cairn", "server.4712.cairn"]);
    assert_eq!(candidates("cairn report o"), ["other.cairn"]);
    // Without a recording that fits, all files.
    assert_eq!(candidates("cairn report n"), ["notes.txt"]);
    assert_eq!(candidates("cairn heap xyz"), ["xyzzy-program"]);
    assert_eq!(candidates("cairn heap ./xyz"), ["./xyzzy-program"]);
    assert_eq!(candidates("cairn heap --sam"), ["--sample"]);
    // Old spellings are not offered beside others: play has --since.
    assert_eq!(candidates("cairn play --s"), ["--stacks", "--symbols", "--sysroot"]);
    assert_eq!(candidates("cairn decode --format c"), ["cbf", "cif"]);
    let pid = scene.pid();
    for line in ["snapshot", "heap --attach", "heap --detach", "heap ctl", "core --pid", "top", "view"] {
        let found = candidates(&format!("cairn {line} {pid}"));
        assert!(found.contains(&pid), "{line}: {found:?}");
    }
    let all = candidates("cairn snapshot ");
    assert!(all.contains(&pid), "{all:?}");
    let shown = candidates("cairn top ");
    assert!(shown.contains(&pid) && shown.contains(&"other.cairn".to_owned()), "{shown:?}");
    assert!(!shown.contains(&"notes.txt".to_owned()), "{shown:?}");
}

#[test]
fn bash_completes_recordings_processes_and_programs() {
    if !is_installed("bash") {
        return;
    }
    // Bash does this when the tab key is pressed: it fills in these variables and calls the
    // registered function.
    const SCRIPT: &str = r#"
        source <(cairn completions bash) || exit 9
        [[ "$(complete -p cairn)" == *"-F "* ]] || exit 8
        function_of_cairn=$(complete -p cairn | sed 's/.*-F \([^ ]*\) .*/\1/')
        COMP_LINE="$1" COMP_POINT=${#1} COMP_TYPE=9
        read -ra COMP_WORDS <<< "$1"
        [[ "$1" == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        "$function_of_cairn" cairn "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        [[ ${#COMPREPLY[@]} -eq 0 ]] || printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let scene = Scene::new("completions-bash");
    check_candidates(&scene, |line| {
        let output = run(scene.shell("bash").args(["--norc", "-c", SCRIPT, "bash", line]));
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().replace('\u{b}', "\n")
    });
}

#[test]
fn fish_completes_recordings_processes_and_programs() {
    if !is_installed("fish") {
        return;
    }
    let scene = Scene::new("completions-fish");
    let complete = |line: &str| {
        let script = "cairn completions fish | source; complete --do-complete $argv[1]";
        let output = run(scene.shell("fish").args(["--no-config", "-c", script, line]));
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    check_candidates(&scene, complete);
    let described = complete(&format!("cairn snapshot {}", scene.pid()));
    assert!(described.contains(&format!("{}\tsleep {SECONDS}", scene.pid())), "{described}");
}

/// Runs zsh in a pseudo-terminal, and types a line and `keys` behind it.
///
/// Returns the resulting line and everything that was shown.
fn zsh(scene: &Scene, line: &str, keys: &str) -> (String, String) {
    // ^Xs writes the line that is edited to a file.
    const SCRIPT: &str = r#"
        zmodload zsh/zpty || exit 9
        export COLUMNS=200 LINES=50
        zpty inner 'zsh -f -i'
        zpty -w inner 'stty cols 200 rows 50; unsetopt beep; LISTMAX=10000'
        zpty -w inner 'autoload -Uz compinit && compinit -u -D; source <(cairn completions zsh)'
        zpty -w inner 'show() { print -r -- "$BUFFER" > line.new && mv line.new line; }; zle -N show; bindkey "^Xs" show'
        zpty -w inner 'print READY-$((40 + 2))'
        zpty -r -m inner shown '*READY-42*' || exit 8
        zpty -w -n inner "$1$2"$'\x18s'
        for attempt in {1..6000}; do
            [[ -e line ]] && break
            sleep 0.05
        done
        zpty -w -n inner $'\x15print DONE-$((40 + 2))\n'
        zpty -r -m inner shown '*DONE-42*' || exit 7
        print -r -- "$shown"
        zpty -d inner
    "#;
    let _ = fs::remove_file(scene.directory.join("line"));
    let output = run(scene.shell("zsh").args(["-f", "-c", SCRIPT, "zsh", line, keys]));
    assert!(
        output.status.success(),
        "{line}: {:?} {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let edited = fs::read_to_string(scene.directory.join("line")).unwrap();
    (edited.trim_end_matches('\n').to_owned(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn zsh_completes_recordings_processes_and_programs() {
    if !is_installed("zsh") {
        return;
    }
    let scene = Scene::new("completions-zsh");
    let pid = scene.pid();
    let cases = [
        ("cairn rep", "cairn report ".to_owned()),
        ("cairn report s", "cairn report server.471".to_owned()),
        ("cairn report o", "cairn report other.cairn ".to_owned()),
        ("cairn report n", "cairn report notes.txt ".to_owned()),
        ("cairn heap xyz", "cairn heap xyzzy-program ".to_owned()),
        ("cairn heap --sam", "cairn heap --sample ".to_owned()),
    ];
    for (line, expected) in cases {
        let (edited, shown) = zsh(&scene, line, "\t");
        assert_eq!(edited, expected, "{shown}");
    }
    // Control-D lists the candidates, with the commands of processes.
    for command in ["snapshot", "heap --attach", "top"] {
        // zsh omits a list when more keys arrive before it is drawn, as on a busy machine.
        let listed = (0..20).map(|_| zsh(&scene, &format!("cairn {command} {pid}"), "\u{4}").1);
        let expected = format!("sleep {SECONDS}");
        let mut last = String::new();
        let is_listed = listed.into_iter().any(|shown| {
            last = shown;
            last.contains(&expected)
        });
        assert!(is_listed, "{command}: {last}");
    }
}

#[test]
fn script_calls_cairn_by_the_path_it_was_called_by() {
    let output = run(Command::new(env!("CARGO_BIN_EXE_cairn")).args(["completions", "bash"]));
    let script = String::from_utf8(output.stdout).unwrap();
    assert!(script.contains(env!("CARGO_BIN_EXE_cairn")), "{script}");
}

/// The subcommands that `cairn --help` lists.
fn subcommands() -> Vec<String> {
    let output = run(Command::new(env!("CARGO_BIN_EXE_cairn")).arg("-h"));
    let help = String::from_utf8(output.stdout).unwrap();
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_ascii_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn man_writes_a_page_for_each_command() {
    let directory = scratch("man-pages");
    let pages = directory.join("man1");
    let man = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
        run(command.arg("man").args(arguments).current_dir(&directory))
    };
    assert_eq!(man(&["man1"]).status.code(), Some(0));
    let again = man(&["man1"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("--force"));
    assert_eq!(man(&["man1", "--force"]).status.code(), Some(0));

    let mut expected: Vec<OsString> = vec!["cairn.1".into(), "cairn-heap-ctl.1".into()];
    let commands = subcommands();
    assert!(commands.len() > 10, "{commands:?}");
    expected
        .extend(commands.iter().filter(|name| *name != "help").map(|name| format!("cairn-{name}.1").into()));
    let written: Vec<_> = fs::read_dir(&pages).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for page in expected {
        assert!(written.contains(&page), "{}: {written:?}", page.display());
    }
    let page = fs::read_to_string(pages.join("cairn-heap.1")).unwrap();
    for text in ["\\-\\-sample", ".SH EXAMPLES", ".SH \"EXIT STATUS\"", "cairn heap [OPTIONS] [PROGRAM]..."] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let first = man(&[]);
    assert_eq!(first.stdout, fs::read(pages.join("cairn.1")).unwrap());
}

#[test]
fn man_pages_have_no_warnings() {
    if !is_installed("groff") {
        return;
    }
    let directory = scratch("man-warnings");
    let mut cairn = Command::new(env!("CARGO_BIN_EXE_cairn"));
    assert!(run(cairn.args(["man", "."]).current_dir(&directory)).status.success());
    let pages = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let output = run(Command::new("groff").args(["-K", "utf8", "-man", "-ww", "-Tutf8"]).args(pages));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("cairn heap --for 30s server --port 80       record the first 30 seconds of a server")
    );
}

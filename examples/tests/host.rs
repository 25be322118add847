//! Plays what `host` records: modules that take each other's addresses, and stacks at each stage.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use cairn_analysis::names::AddressNames;
use cairn_analysis::player::{Event, Filter, Player, Tables, What};
use cairn_symbols::{SymbolizerOptions, Unknown};

/// The recorded program's modules, and what it recorded and printed.
struct Played {
    modules: PathBuf,
    recording: PathBuf,
    printed: Vec<(String, u64)>,
}

/// Builds the modules in a directory of that name, and runs the host.
fn record(name: &str) -> Played {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&directory);
    let modules = directory.join("模块");
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/modules/build.sh");
    let status = Command::new(build).arg(&modules).status().unwrap();
    assert!(status.success(), "no C++ compiler?");
    let recording = directory.join("host.cairn");
    let output = Command::new(env!("CARGO_BIN_EXE_host")).arg(&modules).arg(&recording).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let line = |line: &str| {
        let (name, address) = line.split_once(" 0x").unwrap();
        (name.to_owned(), u64::from_str_radix(address, 16).unwrap())
    };
    let printed = String::from_utf8(output.stdout).unwrap().lines().map(line).collect();
    Played { modules, recording, printed }
}

/// Returns the functions of each marked stack from the marked place to the host's `main`. Each has
/// the file name of its module; an address outside of modules stays an address.
fn marked(recording: &Path, names: &mut AddressNames) -> HashMap<String, Vec<(String, String)>> {
    let mut found = HashMap::new();
    let mut sink = |event: &Event, tables: &dyn Tables, names: Option<&mut AddressNames>| {
        let (What::Mark { text, .. }, Some(names)) = (&event.what, names) else {
            return ControlFlow::Continue(());
        };
        let mut calls = Vec::new();
        for frame in event.frames(tables).iter() {
            let Some((file, lookup)) = frame.lookup(tables) else {
                calls.push((String::new(), frame.address.to_string()));
                continue;
            };
            let module = &tables.modules()[frame.module.unwrap()];
            let resolution = names.resolve(file, lookup);
            for source in resolution.frames() {
                calls.push((module.name().to_owned(), source.function.as_deref().unwrap_or("??").to_owned()));
            }
            if resolution.frames().is_empty() {
                calls.push((module.name().to_owned(), "??".to_owned()));
            }
        }
        let main = calls.iter().position(|(_, function)| function.ends_with("play_the_cast"));
        calls.truncate(main.unwrap_or(calls.len()));
        // The names of the recorder's functions inside of the marked place are not checked.
        let place = calls.iter().position(|(_, function)| function.ends_with("mark_here"));
        calls.drain(..place.unwrap_or(0));
        found.insert(String::from_utf8_lossy(text).into_owned(), calls);
        ControlFlow::Continue(())
    };
    let mut player = Player::open(recording).unwrap();
    player.play(&Filter::default(), Some(names), &mut sink).unwrap();
    assert!(player.is_whole(), "{:?}", player.findings());
    found
}

fn pairs(calls: &[(&str, &str)]) -> Vec<(String, String)> {
    calls.iter().map(|&(module, function)| (module.to_owned(), function.to_owned())).collect()
}

#[test]
fn each_stack_has_the_modules_of_its_time() {
    let played = record("each-stack");
    let [(_, foo), (_, qux), (_, foo_again)] = played.printed[..] else { panic!("{:?}", played.printed) };
    assert_eq!(foo, qux, "the kernel puts qux elsewhere here, so that this test tests nothing");
    assert_ne!(foo, foo_again);

    let stacks = marked(&played.recording, &mut AddressNames::new(SymbolizerOptions::new()));
    let bar = [("libbar.so", "Bar::call(void (*)(char const*), char const*) const"), ("libbar.so", "bar")];
    for text in ["foo through bar", "foo again"] {
        let calls = &stacks[text];
        assert!(calls[0].0 == "host" && calls[0].1.ends_with("mark_here"), "{text}: {calls:?}");
        let modules: Vec<&str> = calls.iter().map(|(module, _)| module.as_str()).collect();
        assert_eq!(modules[1..4], ["libfoo测试.so"; 3], "{text}: {calls:?}");
        assert!(calls[1].1.contains("inner") && calls[2].1.contains("middle"), "{text}: {calls:?}");
        assert_eq!(calls[3].1, "foo测试", "{calls:?}");
        assert_eq!(calls[4..], pairs(&bar), "{text}");
    }
    let calls = &stacks["qux through bar"];
    assert!(calls[1].0 == "libqux.so" && calls[1].1.contains("deeper"), "{calls:?}");
    assert_eq!(calls[2], ("libqux.so".to_owned(), "qux".to_owned()));
    assert_eq!(calls[3..], pairs(&bar));

    // The page where foo was: its one call returns to its twelfth byte.
    let gap = format!("{:#x}", foo + 12);
    assert_eq!(stacks["no module"][1], (String::new(), gap));
    assert_eq!(stacks["no module"][2..4], pairs(&bar));
    assert!(stacks["foo is gone"].iter().all(|(module, _)| module == "host"), "{stacks:?}");
}

#[test]
fn a_replaced_file_lends_no_names() {
    let played = record("replaced");
    let [foo, qux] = ["libfoo测试.so", "libqux.so"].map(|name| played.modules.join(name));
    // As an update does it: another build under the same name.
    std::fs::remove_file(&foo).unwrap();
    std::fs::copy(&qux, &foo).unwrap();
    std::fs::remove_file(&qux).unwrap();

    let mut names = AddressNames::new(SymbolizerOptions::new());
    let stacks = marked(&played.recording, &mut names);
    let [foo_call, qux_call] = ["foo again", "qux through bar"].map(|text| stacks[text][1].clone());
    assert_eq!(foo_call, ("libfoo测试.so".to_owned(), "??".to_owned()));
    assert_eq!(qux_call, ("libqux.so".to_owned(), "??".to_owned()));
    let report = |name: &str| names.reports().find(|(file, _)| file.path.ends_with(name)).unwrap().1;
    assert!(matches!(report("libfoo测试.so").refused[..], [(_, Unknown::DifferentBuild { .. })]));
    assert!(matches!(report("libqux.so").missing, Some(Unknown::NoSuchFile { .. })));
    assert_eq!(report("libbar.so").missing, None);

    // Elsewhere is the right one.
    let elsewhere = played.modules.with_file_name("elsewhere");
    std::fs::create_dir_all(&elsewhere).unwrap();
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/modules/build.sh");
    assert!(Command::new(build).arg(&elsewhere).status().unwrap().success());
    let stacks =
        marked(&played.recording, &mut AddressNames::new(SymbolizerOptions::new().symbol_dir(&elsewhere)));
    assert_eq!(stacks["foo again"][3].1, "foo测试");
    assert_eq!(stacks["qux through bar"][2].1, "qux");
}

//! The rules: each compares a crate with its room and says what is wrong, where, and what to do.

use std::collections::BTreeSet;
use std::fmt;

use super::facts::{Crate, Dependency, SourceFile};
use super::source;
use super::table::{Allowed, Kind, Room, StandardLibrary, UnsafeCode};

/// One thing that is not as the table says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// A file, with the line where that is known.
    place: String,
    what: String,
    remedy: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.place, self.what, self.remedy)
    }
}

const CHANGE_THE_TABLE: &str =
    "or, if the house is to change, change xtask/src/check_rooms/table.rs and ARCHITECTURE.md with it";

/// Returns all violations of the crates against the table.
pub(crate) fn violations(rooms: &[Room], crates: &[Crate]) -> Vec<Violation> {
    let mut found = Vec::new();
    for checked in crates {
        let Some(room) = room_of(rooms, &checked.name) else {
            found.push(Violation {
                place: checked.manifest.clone(),
                what: format!("no room is planned for a crate {:?}", checked.name),
                remedy: "put the code into one of the planned crates, or add a room to \
                         xtask/src/check_rooms/table.rs and to ARCHITECTURE.md"
                    .to_owned(),
            });
            continue;
        };
        found.extend(
            checked.dependencies.iter().filter_map(|edge| edge_violation(rooms, room, checked, edge)),
        );
        found.extend(source_violations(room, checked));
    }
    found
}

/// Product crates that no line of ARCHITECTURE.md's tables names.
pub(crate) fn missing_in_architecture(
    rooms: &[Room],
    crates: &[Crate],
    architecture: &str,
) -> Vec<Violation> {
    let is_in_table = |name: &str| {
        let quoted = format!("`{name}`");
        architecture.lines().any(|line| line.trim_start().starts_with('|') && line.contains(&quoted))
    };
    crates
        .iter()
        .filter(|checked| room_of(rooms, &checked.name).is_none_or(|room| room.kind != Kind::Tool))
        .filter(|checked| !is_in_table(&checked.name))
        .map(|checked| Violation {
            place: "ARCHITECTURE.md".to_owned(),
            what: format!("no table has a line for `{}`", checked.name),
            remedy: "add one that says what the crate is for and what is absent from it".to_owned(),
        })
        .collect()
}

fn room_of<'a>(rooms: &'a [Room], name: &str) -> Option<&'a Room> {
    rooms.iter().find(|room| room.name == name)
}

/// Dev-dependencies are free: they reach nobody who uses the crate. Build dependencies count as
/// normal ones.
fn edge_violation(rooms: &[Room], room: &Room, checked: &Crate, edge: &Dependency) -> Option<Violation> {
    if edge.is_dev {
        return None;
    }
    let violation = |what: String, remedy: String| {
        Some(Violation { place: checked.manifest.clone(), what: format!("{} {what}", checked.name), remedy })
    };
    let name = edge.name.as_str();
    match room_of(rooms, name).map(|other| other.kind) {
        Some(Kind::ForTests) if room.kind != Kind::Tool => {
            return violation(
                format!("depends on {name}, which is for tests"),
                "make it a dev-dependency".to_owned(),
            );
        }
        Some(Kind::Tool) => {
            return violation(
                format!("depends on {name}, which is a tool of the workspace"),
                "move what it needs into a crate of the product".to_owned(),
            );
        }
        _ => {}
    }
    if let Some(behind) = room.uses_behind.iter().find(|behind| behind.dependency == name) {
        if edge.is_optional && !is_on_by_default(checked, name) {
            return None;
        }
        return violation(
            format!("depends on {name} by default"),
            format!("make it optional, behind the feature `{}`, which is off by default", behind.feature),
        );
    }
    let allowed = if edge.is_inside { room.uses } else { room.outside };
    if allows(allowed, name) && !room.never.contains(&name) {
        return None;
    }
    violation(
        format!("depends on {name}, but may use {}", listed(allowed, room.never)),
        format!("remove the dependency, {CHANGE_THE_TABLE}"),
    )
}

fn allows(allowed: Allowed, name: &str) -> bool {
    match allowed {
        Allowed::Any => true,
        Allowed::Only(names) => names.contains(&name),
    }
}

fn listed(allowed: Allowed, never: &[&str]) -> String {
    match allowed {
        Allowed::Any => format!("any crate except {}", never.join(", ")),
        Allowed::Only([]) => "no such crate".to_owned(),
        Allowed::Only(names) => format!("only {}", names.join(", ")),
    }
}

/// Returns whether the feature `default` reaches the optional dependency `name`.
fn is_on_by_default(checked: &Crate, name: &str) -> bool {
    let mut waiting = vec!["default".to_owned()];
    let mut seen = BTreeSet::new();
    while let Some(entry) = waiting.pop() {
        // `dep:name`, `name/feature` and a feature that has the dependency's name switch it on;
        // `name?/feature` does not.
        let switched_on =
            entry.strip_prefix("dep:").or(entry.split_once('/').map(|(crate_name, _)| crate_name));
        if switched_on.unwrap_or(&entry) == name {
            return true;
        }
        let more = checked.features.get(&entry).cloned().unwrap_or_default();
        if seen.insert(entry) {
            waiting.extend(more);
        }
    }
    false
}

fn source_violations(room: &Room, checked: &Crate) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in &checked.sources {
        if file.is_root {
            let attributes = source::inner_attributes(&file.text);
            found.extend(no_std_violation(room, file, &attributes));
            found.extend(unsafe_violation(room, file, &attributes));
        }
        found.extend(back_doors(room, file));
    }
    if room.standard_library == StandardLibrary::NotByDefault && is_on_by_default(checked, "std") {
        found.push(Violation {
            place: checked.manifest.clone(),
            what: format!("the feature `std` of {} is on by default", checked.name),
            remedy: "take it out of `default`".to_owned(),
        });
    }
    found
}

fn no_std_violation(room: &Room, file: &SourceFile, attributes: &[String]) -> Option<Violation> {
    let accepted: &[&str] = match room.standard_library {
        StandardLibrary::Free => return None,
        StandardLibrary::Never => &["no_std"],
        StandardLibrary::NotByDefault => &["no_std", "cfg_attr(not(feature=\"std\"),no_std)"],
    };
    if attributes.iter().any(|attribute| accepted.contains(&attribute.as_str())) {
        return None;
    }
    Some(Violation {
        place: file.path.clone(),
        what: format!("{} is a no_std room, but its root does not say so", room.name),
        remedy: "put `#![no_std]` below the crate's documentation".to_owned(),
    })
}

fn unsafe_violation(room: &Room, file: &SourceFile, attributes: &[String]) -> Option<Violation> {
    let (levels, remedy): (&[&str], &str) = match room.unsafe_code {
        UnsafeCode::Free => return None,
        UnsafeCode::Never => (&["forbid"], "put `#![forbid(unsafe_code)]` below the crate's documentation"),
        UnsafeCode::OnlyIn(_) => (
            &["forbid", "deny"],
            "put `#![forbid(unsafe_code)]` (or `deny`, with the files of it) below the crate's documentation",
        ),
    };
    if source::sets_lint(attributes, levels, "unsafe_code") {
        return None;
    }
    Some(Violation {
        place: file.path.clone(),
        what: format!("{} is a room without unsafe code, but its root does not say so", room.name),
        remedy: remedy.to_owned(),
    })
}

/// Lines that undo what the root declares.
fn back_doors(room: &Room, file: &SourceFile) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut add = |line: usize, what: String, remedy: &str| {
        let place = format!("{}:{line}", file.path);
        found.push(Violation { place, what, remedy: remedy.to_owned() });
    };
    if room.standard_library == StandardLibrary::Never {
        for line in source::lines_with_std_or_alloc(&file.text) {
            add(
                line,
                format!("{} brings in std or alloc", room.name),
                "use `core`, or move the code to another crate",
            );
        }
    }
    if let UnsafeCode::OnlyIn(names) = room.unsafe_code
        && !names.iter().any(|name| file.path.ends_with(&format!("/{name}")))
    {
        for line in source::lines_that_allow(&file.text, "unsafe_code") {
            add(
                line,
                format!("{} allows unsafe code outside {}", room.name, names.join(" and ")),
                "move the unsafe code there",
            );
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::table::ROOMS;
    use super::*;

    fn crate_named(name: &str, root: &str) -> Crate {
        let sources = vec![source_file(name, "lib.rs", true, root)];
        Crate {
            name: name.to_owned(),
            manifest: format!("crates/{name}/Cargo.toml"),
            sources,
            ..Crate::default()
        }
    }

    fn source_file(name: &str, file: &str, is_root: bool, text: &str) -> SourceFile {
        SourceFile { path: format!("crates/{name}/src/{file}"), is_root, text: text.to_owned() }
    }

    fn inside(name: &str) -> Dependency {
        Dependency { name: name.to_owned(), is_dev: false, is_optional: false, is_inside: true }
    }

    fn outside(name: &str) -> Dependency {
        Dependency { is_inside: false, ..inside(name) }
    }

    fn dev(name: &str) -> Dependency {
        Dependency { is_dev: true, ..inside(name) }
    }

    /// Checks one crate; `expected` is in the only violation, or there is none and `expected` is
    /// empty.
    fn check(checked: Crate, expected: &str) {
        let found: Vec<String> = violations(ROOMS, &[checked]).iter().map(Violation::to_string).collect();
        match (found.as_slice(), expected) {
            ([], "") => {}
            ([only], expected) if !expected.is_empty() && only.contains(expected) => {}
            _ => panic!("expected {expected:?}, found {found:#?}"),
        }
    }

    fn check_edges(name: &str, edges: &[Dependency], expected: &str) {
        let mut checked = crate_named(name, "#![no_std]\n#![forbid(unsafe_code)]\n");
        checked.dependencies = edges.to_vec();
        check(checked, expected);
    }

    #[test]
    fn rooms_allow_only_edges_of_the_table() {
        check_edges("cairn-unwind", &[inside("cairn-format")], "");
        check_edges(
            "cairn-unwind",
            &[inside("cairn-capture")],
            "depends on cairn-capture, but may use only cairn-format",
        );
        check_edges("cairn-format", &[inside("cairn-unwind")], "may use no such crate");
        check_edges(
            "cairn-analysis",
            &[inside("cairn-capture")],
            "crates/cairn-analysis/Cargo.toml: cairn-analysis",
        );
        check_edges("cairn-cli", &[inside("cairn-analysis"), inside("cairn-web")], "");
    }

    #[test]
    fn rooms_allow_only_external_crates_of_the_table() {
        check_edges("cairn-format", &[outside("memchr")], "depends on memchr");
        check_edges("cairn-capture", &[outside("libc")], "");
        check_edges("cairn-preload", &[outside("serde")], "may use only libc");
        check_edges("cairn-symbols", &[outside("gimli"), outside("addr2line")], "");
        check_edges("cairn-analysis", &[outside("clap")], "any crate except clap");
    }

    #[test]
    fn rooms_refuse_external_crates_with_room_names() {
        check_edges("cairn-unwind", &[outside("cairn-format")], "depends on cairn-format");
    }

    #[test]
    fn rooms_allow_all_dev_dependencies() {
        check_edges("cairn-format", &[dev("proptest"), dev("cairn-testkit"), dev("cairn-analysis")], "");
    }

    #[test]
    fn rooms_refuse_test_kit_and_tools_as_dependency() {
        check_edges("cairn-analysis", &[inside("cairn-testkit")], "make it a dev-dependency");
        check_edges("cairn-cli", &[inside("xtask")], "a tool of the workspace");
        check_edges("cairn-benches", &[inside("cairn-testkit"), inside("cairn-capture")], "");
    }

    #[test]
    fn rooms_require_feature_edges_off_by_default() {
        let optional = Dependency { is_optional: true, ..inside("cairn-analysis") };
        let with = |edge: &Dependency, features: &[(&str, &[&str])]| {
            let mut checked = crate_named("cairn-c", "");
            checked.dependencies.push(edge.clone());
            let owned = |list: &[&str]| list.iter().map(|&entry| entry.to_owned()).collect();
            checked.features = features.iter().map(|&(name, list)| (name.to_owned(), owned(list))).collect();
            checked
        };
        check(with(&optional, &[("analysis", &["dep:cairn-analysis"])]), "");
        check(with(&inside("cairn-analysis"), &[]), "behind the feature `analysis`");
        let on = [("default", &["full"][..]), ("full", &["analysis"]), ("analysis", &["dep:cairn-analysis"])];
        check(with(&optional, &on), "depends on cairn-analysis by default");
        check(with(&optional, &[("default", &["cairn-analysis?/fast"])]), "");
        check(with(&optional, &[("default", &["cairn-analysis/fast"])]), "by default");
        check(with(&optional, &[("default", &["loop"]), ("loop", &["default"])]), "");
    }

    #[test]
    fn rooms_refuse_unplanned_crates() {
        check(crate_named("cairn-utils", ""), "no room is planned for a crate \"cairn-utils\"");
    }

    #[test]
    fn rooms_require_root_attributes() {
        check(
            crate_named("cairn-format", "#![forbid(unsafe_code)]\n"),
            "crates/cairn-format/src/lib.rs: cairn-format is a no_std room",
        );
        check(
            crate_named("cairn-format", "#![no_std]\n#![deny(unsafe_code)]\n"),
            "put `#![forbid(unsafe_code)]`",
        );
        check(crate_named("cairn-capture", ""), "no_std room");
        check(crate_named("cairn-capture", "#![no_std]\n"), "");
        check(crate_named("cairn-heap", "#![cfg_attr(not(feature = \"std\"), no_std)]\n"), "");
        check(crate_named("cairn-symbols", "#![deny(unsafe_code)]\n"), "");
        check(crate_named("cairn-web", "#![deny(unsafe_code)]\n"), "without unsafe code");
    }

    #[test]
    fn rooms_require_std_off_by_default() {
        let mut checked = crate_named("cairn-heap", "#![cfg_attr(not(feature = \"std\"), no_std)]\n");
        checked.features =
            [("default".to_owned(), vec!["std".to_owned()]), ("std".to_owned(), Vec::new())].into();
        check(checked, "the feature `std` of cairn-heap is on by default");
    }

    #[test]
    fn rooms_refuse_files_that_lift_root_attributes() {
        let mut checked = crate_named("cairn-unwind", "#![no_std]\n#![forbid(unsafe_code)]\n");
        checked.sources.push(source_file("cairn-unwind", "table.rs", false, "\nextern crate alloc;\n"));
        check(checked, "crates/cairn-unwind/src/table.rs:2: cairn-unwind brings in std or alloc");
        let mut checked = crate_named("cairn-symbols", "#![deny(unsafe_code)]\n");
        checked.sources.push(source_file(
            "cairn-symbols",
            "mapped_file.rs",
            false,
            "#![allow(unsafe_code)]\n",
        ));
        check(checked.clone(), "");
        checked.sources.push(source_file("cairn-symbols", "elf.rs", false, "#[allow(unsafe_code)]\n"));
        check(checked, "src/elf.rs:1: cairn-symbols allows unsafe code outside mapped_file.rs");
        let mut checked = crate_named("cairn-memory", "#![deny(unsafe_code)]\n");
        let allows = "#![allow(unsafe_code)]\n";
        checked.sources.push(source_file("cairn-memory", "process/ptrace.rs", false, allows));
        check(checked.clone(), "");
        checked.sources.push(source_file("cairn-memory", "process/live.rs", false, allows));
        check(checked, "outside mapped_file.rs and ptrace.rs");
    }

    #[test]
    fn rooms_are_named_in_the_architecture() {
        let crates = [crate_named("cairn-format", ""), crate_named("xtask", "")];
        let missing = |text: &str| missing_in_architecture(ROOMS, &crates, text).len();
        assert_eq!(missing("| `cairn-format` | the words |\n"), 0);
        assert_eq!(missing("`cairn-format` is in no table\n| `cairn-formats` |\n"), 1);
    }

    #[test]
    fn rooms_table_is_consistent() {
        for (at, room) in ROOMS.iter().enumerate() {
            assert!(ROOMS[..at].iter().all(|other| other.name != room.name), "{} is listed twice", room.name);
            if let Allowed::Only(names) = room.uses {
                assert!(
                    names.iter().all(|name| room_of(ROOMS, name).is_some()),
                    "{}: an unknown room",
                    room.name
                );
            }
            for behind in room.uses_behind {
                assert!(room_of(ROOMS, behind.dependency).is_some(), "{}: an unknown room", room.name);
            }
        }
    }
}

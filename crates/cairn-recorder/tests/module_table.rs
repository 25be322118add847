//! The table of modules in `lib.rs` is complete, and each module uses only modules above it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Returns name and used modules of each row of the table.
fn rows(library: &str) -> Vec<(String, BTreeSet<String>)> {
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = library.lines().filter_map(|line| line.strip_prefix("//! | "));
    rows.filter(|row| row.contains('`'))
        .map(|row| {
            let cells: Vec<&str> = row.split(" | ").collect();
            let name = names(cells[0]).remove(0);
            (name, names(cells.last().unwrap()).into_iter().collect())
        })
        .collect()
}

/// Folders with the modules of one system. Those of equal names are one module.
const FOLDERS: [&str; 3] = ["", "linux", "windows"];

/// Returns the modules that a source file names by `crate::` or `super::`, outside of comments.
fn used(source: &str, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let code: String =
        source.lines().map(|line| line.split("//").next().unwrap().to_owned() + "\n").collect();
    let mut used = BTreeSet::new();
    for path in code.replace("super::", "crate::").split("crate::").skip(1) {
        let list = path.strip_prefix('{').and_then(|rest| rest.split('}').next());
        for item in list.unwrap_or(path).split(',') {
            let end = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
            used.insert(item.trim().split(end).next().unwrap().to_owned());
            if list.is_none() {
                break;
            }
        }
    }
    used.retain(|name| modules.contains(name));
    used
}

#[test]
fn modules_use_only_modules_above_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let rows = rows(&fs::read_to_string(folder.join("lib.rs")).unwrap());
    let listed: BTreeSet<String> = rows.iter().map(|(name, _)| name.clone()).collect();
    let files = FOLDERS.map(|part| fs::read_dir(folder.join(part)).unwrap()).into_iter().flatten();
    let present: BTreeSet<String> = files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .filter(|name| name != "lib" && name != "mod")
        .collect();
    assert_eq!(listed, present, "the table in lib.rs lists every module");
    let mut above = BTreeSet::new();
    for (name, stated) in rows {
        let files = FOLDERS.map(|part| folder.join(part).join(format!("{name}.rs")));
        let sources = files.into_iter().filter_map(|file| fs::read_to_string(file).ok());
        let mut used: BTreeSet<String> = sources.flat_map(|source| used(&source, &listed)).collect();
        used.remove(&name);
        assert_eq!(stated, used, "the row of `{name}` in lib.rs states the modules that it uses");
        assert!(used.is_subset(&above), "`{name}` uses a module below it: {:?}", used.difference(&above));
        above.insert(name);
    }
}

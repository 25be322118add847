//! Reads the crates of the workspace: `cargo metadata`, and the text of their sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::process::{Failure, Outcome, at, cargo, read, workspace_root};

/// A crate of the workspace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Crate {
    pub(crate) name: String,
    /// Its `Cargo.toml`, relative to the workspace.
    pub(crate) manifest: String,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) features: BTreeMap<String, Vec<String>>,
    /// All files below its `src/`.
    pub(crate) sources: Vec<SourceFile>,
}

/// One dependency as the manifest states it.
#[derive(Debug, Clone)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) is_dev: bool,
    pub(crate) is_optional: bool,
    /// Whether it is a crate of this workspace.
    pub(crate) is_inside: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct SourceFile {
    /// Relative to the workspace.
    pub(crate) path: String,
    /// Whether it is the root of a library or program, which has the crate attributes.
    pub(crate) is_root: bool,
    pub(crate) text: String,
}

/// Returns the crates of this workspace.
pub(crate) fn gather() -> Outcome<Vec<Crate>> {
    let text = read(cargo().args(["metadata", "--format-version=1", "--no-deps"]))?;
    let metadata: Value =
        serde_json::from_str(&text).map_err(|error| Failure::new(format!("cargo metadata: {error}")))?;
    let mut crates = from_metadata(&metadata);
    for (found, package) in crates.iter_mut().zip(list(&metadata["packages"])) {
        found.sources = sources(package)?;
    }
    Ok(crates)
}

/// Returns everything but the sources.
fn from_metadata(metadata: &Value) -> Vec<Crate> {
    let packages = list(&metadata["packages"]);
    let names: Vec<String> = packages.iter().map(|package| text(&package["name"])).collect();
    packages
        .iter()
        .map(|package| Crate {
            name: text(&package["name"]),
            manifest: relative(&text(&package["manifest_path"])),
            dependencies: list(&package["dependencies"])
                .iter()
                .map(|dependency| Dependency {
                    name: text(&dependency["name"]),
                    is_dev: dependency["kind"] == "dev",
                    is_optional: dependency["optional"] == true,
                    is_inside: dependency["source"].is_null() && names.contains(&text(&dependency["name"])),
                })
                .collect(),
            features: package["features"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, entries)| (name.clone(), list(entries).iter().map(text).collect()))
                .collect(),
            sources: Vec::new(),
        })
        .collect()
}

/// Returns the roots of shipped targets, and all files next to and below them. Tests, examples and
/// build scripts are not shipped.
fn sources(package: &Value) -> Outcome<Vec<SourceFile>> {
    let roots: Vec<PathBuf> = list(&package["targets"])
        .iter()
        .filter(|target| list(&target["kind"]).iter().any(is_shipped))
        .map(|target| PathBuf::from(text(&target["src_path"])))
        .collect();
    let mut paths = roots.clone();
    for root in &roots {
        if let Some(directory) = root.parent() {
            rust_files(directory, &mut paths)?;
        }
    }
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .map(|path| {
            Ok(SourceFile {
                is_root: roots.contains(&path),
                text: fs::read_to_string(&path).map_err(at(&path))?,
                path: relative(&path.to_string_lossy()),
            })
        })
        .collect()
}

fn is_shipped(kind: &Value) -> bool {
    ["lib", "rlib", "dylib", "cdylib", "staticlib", "proc-macro", "bin"].iter().any(|shipped| kind == shipped)
}

fn rust_files(directory: &Path, paths: &mut Vec<PathBuf>) -> Outcome {
    for entry in fs::read_dir(directory).map_err(at(directory))? {
        let path = entry.map_err(at(directory))?.path();
        if path.is_dir() {
            rust_files(&path, paths)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
    Ok(())
}

fn relative(path: &str) -> String {
    let path = Path::new(path);
    path.strip_prefix(workspace_root()).unwrap_or(path).to_string_lossy().into_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_read_crates_and_edges_from_metadata() {
        let metadata = serde_json::json!({"packages": [
            {"name": "cairn-format", "manifest_path": "/elsewhere/Cargo.toml", "dependencies": [
                {"name": "proptest", "kind": "dev", "optional": false, "source": "registry+https://example.org"},
            ], "features": {}},
            {"name": "cairn-c", "manifest_path": "/elsewhere/c/Cargo.toml", "dependencies": [
                {"name": "cairn-format", "kind": null, "optional": true, "source": null},
                {"name": "libc", "kind": "build", "optional": false, "source": "registry+https://example.org"},
            ], "features": {"analysis": ["dep:cairn-format"]}},
        ]});
        let crates = from_metadata(&metadata);
        let edges: Vec<(&str, bool, bool, bool)> = crates
            .iter()
            .flat_map(|found| &found.dependencies)
            .map(|edge| (edge.name.as_str(), edge.is_dev, edge.is_optional, edge.is_inside))
            .collect();
        assert_eq!(
            edges,
            [
                ("proptest", true, false, false),
                ("cairn-format", false, true, true),
                ("libc", false, false, false)
            ]
        );
        assert_eq!(crates[1].features["analysis"], ["dep:cairn-format"]);
    }

    #[test]
    fn rooms_read_the_sources_of_this_workspace() {
        let crates = gather().unwrap();
        let xtask = crates.iter().find(|found| found.name == "xtask").expect("xtask is a member");
        let roots: Vec<&str> =
            xtask.sources.iter().filter(|file| file.is_root).map(|file| file.path.as_str()).collect();
        assert_eq!(roots, ["xtask/src/main.rs"]);
        assert!(xtask.sources.iter().any(|file| file.path == "xtask/src/check_rooms/facts.rs"));
    }
}

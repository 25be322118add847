//! Gets tools and packages from Debian: installs missing tools, and unpacks packages without
//! installing them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{Failure, Outcome, at, on_path, read, run, workspace_root};

/// A program that a chore starts, and the Debian package that brings it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tool {
    /// Looked for on the path.
    pub(crate) program: &'static str,
    /// Installed, with `also`, when the program is missing.
    pub(crate) package: &'static str,
    /// Packages that it only recommends but the chore needs, such as a cross compiler's C library.
    pub(crate) also: &'static [&'static str],
}

/// Installs the missing tools, as root or with a `sudo` that asks nothing.
///
/// # Errors
/// Names the command to run when it may not install.
pub(crate) fn require(tools: &[Tool]) -> Outcome {
    let missing: Vec<&Tool> = tools.iter().filter(|tool| !on_path(tool.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing
        .iter()
        .flat_map(|tool| std::iter::once(tool.package).chain(tool.also.iter().copied()))
        .collect();
    println!("missing here: {}", missing.iter().map(|tool| tool.program).collect::<Vec<_>>().join(", "));
    install(&packages).map_err(|failure| {
        Failure::new(format!(
            "{failure}\ninstall what is missing, then try again:\n  apt-get update && apt-get install \
             --no-install-recommends {}",
            packages.join(" ")
        ))
    })
}

/// Installs packages.
pub(crate) fn install(packages: &[&str]) -> Outcome {
    if !on_path("apt-get") {
        return Err(Failure::new("there is no apt-get on this machine"));
    }
    // Chores that run beside each other take turns.
    let lock = workspace_root().join("target").join("apt.lock");
    let lock = File::create(&lock).and_then(|file| file.lock().map(|()| file)).map_err(at(&lock))?;
    // A mirror in the middle of an update makes `update` fail although the lists at hand serve;
    // `install` decides.
    if let Err(failure) = run(as_root("apt-get").args(["update", "-qq"])) {
        eprintln!("{failure}; going on with the package lists at hand");
    }
    let installed =
        run(as_root("apt-get").args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages));
    drop(lock);
    installed
}

fn as_root(program: &str) -> Command {
    let is_root = read(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    let mut command = Command::new(if is_root { "env" } else { "sudo" });
    if !is_root {
        command.arg("-n").arg("env");
    }
    command.args(["DEBIAN_FRONTEND=noninteractive", program]);
    command
}

/// A separate apt, which writes only below its directory. Its lists cover other architectures, and
/// it sees no package as installed. So packages of any architecture can be fetched (and their
/// signatures checked) without root, and without `dpkg --add-architecture` on a machine that is not
/// ours.
pub(crate) struct PrivateApt {
    options: Vec<String>,
}

impl PrivateApt {
    /// Prepares `directory`; `architectures` begins with the machine's own.
    pub(crate) fn new(directory: &Path, architectures: &[&str]) -> Outcome<Self> {
        for part in ["lists/partial", "cache/archives/partial"] {
            let part = directory.join(part);
            fs::create_dir_all(&part).map_err(at(&part))?;
        }
        let status = directory.join("status");
        fs::write(&status, "").map_err(at(&status))?;
        let settings = [
            format!("APT::Architectures={}", architectures.join(",")),
            // Otherwise apt, when root, drops to a user who may not write here.
            "APT::Sandbox::User=root".to_owned(),
            format!("Dir::State::lists={}", directory.join("lists").display()),
            format!("Dir::State::status={}", status.display()),
            format!("Dir::Cache={}", directory.join("cache").display()),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ];
        Ok(Self { options: settings.into_iter().flat_map(|setting| ["-o".to_owned(), setting]).collect() })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(&self.options).env("LC_ALL", "C");
        command
    }

    /// Fetches the package lists. A source that fails is reported and skipped: what is missing
    /// in the end is noticed when a package is asked for.
    pub(crate) fn update(&self) {
        println!("fetching package lists into a directory of our own");
        if let Err(failure) = read(self.command("apt-get").args(["update", "-qq"])) {
            let text = failure.to_string();
            text.lines().filter(|line| line.starts_with("E: ")).for_each(|line| eprintln!("{line}"));
            eprintln!("going on with the lists that came");
        }
    }

    /// Returns the available versions of `package` (`name` or `name:architecture`), newest
    /// first.
    pub(crate) fn versions(&self, package: &str) -> Outcome<Vec<String>> {
        // One line a version and source:
        // `libstd-rust-web-dev:arm64 | 1.85.0+dfsg3-1~deb12u3 | http://… Packages`.
        let lines = read(self.command("apt-cache").args(["madison", package]))?;
        Ok(lines.lines().filter_map(|line| line.split('|').nth(1)).map(|v| v.trim().to_owned()).collect())
    }

    /// Returns the packages that `package` needs and this machine lacks, itself included.
    pub(crate) fn missing_closure(&self, package: &str) -> Outcome<Vec<String>> {
        let only_needs = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"];
        let lines = read(
            self.command("apt-cache")
                .args(["depends", "--recurse"])
                .args(only_needs.map(|kind| format!("--no-{kind}")))
                .arg(package),
        )?;
        Ok(dependency_names(&lines).into_iter().filter(|name| !is_installed(name)).collect())
    }

    /// Fetches `packages` (`name`, `name:architecture`, each possibly with `=version`) into
    /// `directory`.
    pub(crate) fn download(&self, packages: &[String], directory: &Path) -> Outcome {
        fs::create_dir_all(directory).map_err(at(directory))?;
        println!("fetching {} packages: {}", packages.len(), packages.join(" "));
        read(self.command("apt-get").args(["download", "-q"]).args(packages).current_dir(directory)).map(drop)
    }
}

/// Returns the package names in `apt-cache depends` output. They are at the start of a line;
/// virtual ones are in `<>`.
fn dependency_names(lines: &str) -> Vec<String> {
    lines
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_alphanumeric()))
        .map(|line| line.trim_end().to_owned())
        .collect()
}

fn is_installed(package: &str) -> bool {
    let query =
        read(Command::new("dpkg-query").args(["--show", "--showformat=${db:Status-Status}", package]));
    query.is_ok_and(|status| status == "installed")
}

/// Returns the machine's own architecture in Debian's words: `amd64`.
pub(crate) fn own_architecture() -> Outcome<String> {
    read(Command::new("dpkg").arg("--print-architecture")).map(|name| name.trim().to_owned())
}

/// Returns the `.deb` files in a directory.
pub(crate) fn archives(directory: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).map_err(at(directory))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "deb"));
    paths.sort();
    Ok(paths)
}

/// Unpacks the files of an archive that match `pattern` into `root`. The pattern is a `tar`
/// wildcard on paths such as `./usr/lib`.
pub(crate) fn unpack(archive: &Path, pattern: &str, root: &Path) -> Outcome {
    fs::create_dir_all(root).map_err(at(root))?;
    let mut reader = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(archive)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::new(format!("could not start `dpkg-deb`: {error}")))?;
    let tar = reader.stdout.take().expect("stdout is piped");
    let mut writer = Command::new("tar");
    writer
        .args(["--extract", "--no-same-owner", "--wildcards", "--directory"])
        .arg(root)
        .arg(pattern)
        .stdin(tar);
    let written = writer.status().map_err(|error| Failure::new(format!("could not start `tar`: {error}")))?;
    let was_read = reader.wait().map_err(at(archive))?;
    if written.success() && was_read.success() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{}: could not be unpacked (dpkg-deb: {was_read}, tar: {written})",
        archive.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_dependencies_are_lines_without_indent() {
        let lines = "libllvm19\n  Depends: libc6\n |Depends: libedit2\nlibc6:s390x\n<virtual>\nlibedit2\n";
        assert_eq!(dependency_names(lines), ["libllvm19", "libc6:s390x", "libedit2"]);
    }
}

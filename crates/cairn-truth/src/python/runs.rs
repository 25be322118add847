//! Runs interpreters with the hooks of `fixtures/programs/python_hooks.c`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::driver::{Ended, Outcome, Workplace, sources};
use crate::report::Counter;

/// The amount of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// Some ten thousand stacks.
    Short,
    /// A million stacks.
    Long,
}

/// Interpreters that run with hooks.
pub struct Pythons {
    workplace: Workplace,
    preload: PathBuf,
}

impl Pythons {
    /// Builds the library with the hooks.
    ///
    /// # Errors
    ///
    /// The compiler's messages.
    pub fn build(name: &str) -> Outcome<Self> {
        let workplace = Workplace::new(name)?;
        let preload = workplace.compile("python_hooks.c", "python_hooks.so", &["-O2", "-shared", "-fPIC"])?;
        Ok(Self { workplace, preload })
    }

    /// The interpreters on the path, each file once.
    #[must_use]
    pub fn installed() -> BTreeSet<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let candidates = std::env::split_paths(&path).flat_map(|directory| {
            let versions = (8..=15).map(|minor| format!("python3.{minor}"));
            versions.chain(["python3".to_owned()]).map(move |name| directory.join(name)).collect::<Vec<_>>()
        });
        candidates.filter_map(|program| own_path(&program)).collect()
    }

    /// Runs one interpreter; `None` when its frames are not read.
    ///
    /// # Errors
    ///
    /// When it could not be started.
    pub fn run(&self, program: &Path, amount: Amount) -> Outcome<Option<Ended>> {
        let rounds = match amount {
            Amount::Short => "5",
            Amount::Long => "600",
        };
        let mut command = Command::new(program);
        command.arg(sources().join("python_work.py")).arg(rounds);
        // `malloc` for all objects, so that every allocation is compared.
        command.env("PYTHONMALLOC", "malloc").env("LD_PRELOAD", &self.preload);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let ended = self.workplace.run(&mut command, Duration::from_secs(900))?;
        Ok((ended.report.count(Counter::Failed) == 0).then_some(ended))
    }
}

/// The interpreter behind a name, which may be a script that chooses a version.
fn own_path(program: &Path) -> Option<PathBuf> {
    if !program.is_file() {
        return None;
    }
    let output = Command::new(program)
        .args(["-c", "import sys; print(sys.executable)"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.canonicalize().ok().filter(|_| output.status.success())
}

//! Options that choose whose frames are shown, and which leaks are known.

use std::io;
use std::path::{Path, PathBuf};

use cairn_analysis::attribution::project::{self, Project};
use cairn_analysis::attribution::{FoldRules, Folding, FramePattern};
use cairn_analysis::heap::{HeapProfile, Names, Suppressed, Suppressions};
use cairn_analysis::source::{HeapSource, TimeSpan};
use clap::Args;

/// Which frames are folded.
#[derive(Args, Default)]
pub(crate) struct FoldOptions {
    /// Show every frame, also of the allocator, its wrappers, standard libraries and start-up
    #[arg(long)]
    internals: bool,

    /// Count only stacks with a frame that matches, and treat that frame as yours. PATTERN is
    /// compared with the function, module, file and crate; function=PATTERN and so on with one of
    /// them. Patterns support *, ^ and $. May be repeated
    #[arg(long, value_name = "PATTERN")]
    focus: Vec<FramePattern>,

    /// Fold frames that match, written as for --focus. May be repeated
    #[arg(long, value_name = "PATTERN")]
    hide: Vec<FramePattern>,

    /// A list of functions that only pass requests on to the allocator: a PATTERN a line, with ! in
    /// front of one that is none. May be repeated
    #[arg(long, value_name = "FILE")]
    wrappers: Vec<PathBuf>,

    /// The project file [default: .cairn.toml in this directory or the nearest one above]
    #[arg(long, value_name = "FILE")]
    project: Option<PathBuf>,
}

/// Which leaks are known.
#[derive(Args, Default)]
pub(crate) struct KnownLeakOptions {
    /// Known leaks, as LeakSanitizer reads them: lines of leak:PATTERN. May be repeated
    #[arg(long, value_name = "FILE")]
    suppressions: Vec<PathBuf>,

    /// Count the leaks of libraries that every program has, too
    #[arg(long)]
    no_default_suppressions: bool,
}

impl FoldOptions {
    /// The frames that are folded.
    pub(crate) fn folding(&self) -> io::Result<Folding> {
        let mut rules = self.read_project()?.map_or_else(FoldRules::default, |project| project.rules);
        rules.internals = self.internals;
        rules.focus.extend(self.focus.iter().cloned());
        rules.hidden.extend(self.hide.iter().cloned());
        for path in &self.wrappers {
            let (wrappers, others) =
                project::read_wrappers(&text_of(path)?).map_err(|error| named(path, &error))?;
            rules.wrappers.extend(wrappers);
            rules.not_wrappers.extend(others);
        }
        Ok(rules.into())
    }

    fn read_project(&self) -> io::Result<Option<Project>> {
        let found = match &self.project {
            Some(path) => Project::read(path).map(Some),
            None => match std::env::current_dir() {
                Ok(directory) => Project::find(&directory),
                // Without a working directory there is no project.
                Err(_) => Ok(None),
            },
        };
        found.map_err(|error| io::Error::other(error.to_string()))
    }
}

impl KnownLeakOptions {
    /// Whether the user named any.
    pub(crate) fn is_chosen(&self) -> bool {
        !self.suppressions.is_empty() || self.no_default_suppressions
    }

    /// Holds back the known leaks of a profile; returns them by name.
    pub(crate) fn hold_back(
        &self,
        folding: &FoldOptions,
        source: &HeapSource,
        span: TimeSpan,
        profile: &mut HeapProfile,
        names: &mut Names<'_>,
    ) -> io::Result<Vec<Suppressed>> {
        let is_leaked = source.unfreed(span).is_leaked();
        self.hold_back_of(folding, is_leaked, profile, names)
    }

    /// The same where it is known whether blocks are leaked; those that are alive are in use.
    pub(crate) fn hold_back_of(
        &self,
        folding: &FoldOptions,
        is_leaked: bool,
        profile: &mut HeapProfile,
        names: &mut Names<'_>,
    ) -> io::Result<Vec<Suppressed>> {
        let mut all = Suppressions::default();
        for path in &self.suppressions {
            let parsed = Suppressions::parse(&text_of(path)?);
            all.extend(parsed.map_err(|error| named(path, &error))?);
        }
        let project = folding.read_project()?;
        let mut has_known = is_leaked && !self.no_default_suppressions;
        if let Some(project) = project {
            has_known &= project.has_default_suppressions;
            all.extend(project.suppressions);
        }
        if has_known {
            all.extend(Suppressions::known());
        }
        if all.is_empty() {
            return Ok(Vec::new());
        }
        let (held_back, rest) = all.apply(profile, names);
        *profile = rest;
        Ok(held_back)
    }
}

fn named(path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

fn text_of(path: &Path) -> io::Result<String> {
    let bytes = std::fs::read(path).map_err(|error| named(path, &error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

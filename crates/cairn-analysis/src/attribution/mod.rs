//! Decides whose each frame of a stack is: the user's, a library's, a language's, or the
//! allocator's.
//!
//! A stack is never shortened. Lists name the innermost frame that is the user's; trees and stacks
//! leave out, *fold*, the frames that say nothing about why memory was allocated. This module is
//! the only place that decides either.
//!
//! ```text
//! malloc                     allocator          folded
//! zmalloc                    wrapper            folded: found in the recording (`wrappers`)
//! std::vector::push_back     standard library   folded
//! shop::report_month         mine               <- the name of the row
//! QApplication::exec         library Qt
//! main                       mine
//! __libc_start_main          runtime            folded
//! ```
//!
//! The evidence, in this order: what the user said ([`FoldRules`]), the function's name, its source
//! file, its module. The rules are tables with a reason in each row (`rules.rs`).

pub mod colours;
mod evidence;
pub mod known_leaks;
mod packages;
mod pattern;
mod plain_name;
pub mod project;
mod rules;
mod wrapper_names;
pub(crate) mod wrappers;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::heap::Stacks;
use crate::names::with_slashes;
pub use pattern::{BadFramePattern, FramePattern, FrameProperty, FrameText};
pub use plain_name::plain_name;

/// The kind of a frame's owner, the best name for a row first.
///
/// A stack without a frame of the user is named after its innermost frame of the best kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum OwnerKind {
    /// The user's own code.
    Mine,
    /// Code of others that the user chose: a library, a crate, a package.
    Library,
    /// Code without a file, as of a JIT compiler, or a place that is no function.
    Unknown,
    /// The interpreter or virtual machine that runs the user's code.
    Interpreter,
    /// The standard library of a language.
    StandardLibrary,
    /// The way to `main` or to a thread's function, and the loader.
    Runtime,
    /// A function that only passes a request on to the allocator: `zmalloc`.
    Wrapper,
    /// The allocator, and what calls it in the name of every container.
    Allocator,
}

impl OwnerKind {
    /// The word for it, as JSON has it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Mine => "mine",
            Self::Library => "library",
            Self::Unknown => "unknown",
            Self::Interpreter => "interpreter",
            Self::StandardLibrary => "standard-library",
            Self::Runtime => "runtime",
            Self::Wrapper => "wrapper",
            Self::Allocator => "allocator",
        }
    }
}

/// The owner of a frame.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Owner {
    /// Its kind.
    pub kind: OwnerKind,
    /// The library, language or interpreter; empty for the user's code and for what is unknown.
    pub name: Arc<str>,
}

impl Owner {
    /// The user.
    #[must_use]
    pub fn mine() -> Self {
        Self { kind: OwnerKind::Mine, name: "".into() }
    }

    fn of(kind: OwnerKind, name: &str) -> Self {
        Self { kind, name: name.into() }
    }

    fn library(name: &str) -> Self {
        Self::of(OwnerKind::Library, name)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            OwnerKind::Mine => f.write_str("your code"),
            OwnerKind::Unknown => f.write_str("code without a file"),
            OwnerKind::Library | OwnerKind::Interpreter => f.write_str(&self.name),
            OwnerKind::StandardLibrary => write!(f, "{}'s standard library", self.name),
            OwnerKind::Runtime => write!(f, "{}'s runtime", self.name),
            OwnerKind::Wrapper => f.write_str("wrappers"),
            OwnerKind::Allocator => f.write_str("the allocator"),
        }
    }
}

/// The choices of a user about frames: patterns for owners, and what is left out.
///
/// They come from options and from the [project file](project).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FoldRules {
    /// Nothing is folded, and rows are named after the innermost frame.
    pub internals: bool,
    /// Only stacks with such a frame are counted; the frame counts as the user's.
    pub focus: Vec<FramePattern>,
    /// Folded, also where their owner is the user.
    pub hidden: Vec<FramePattern>,
    /// The user's.
    pub mine: Vec<FramePattern>,
    /// Wrappers of the allocator.
    pub wrappers: Vec<FramePattern>,
    /// No wrappers, whatever the recording suggests.
    pub not_wrappers: Vec<FramePattern>,
    /// Directories of the user's sources, as the compiler wrote them.
    ///
    /// Where there are some, other source files in the program are a library's.
    pub source_roots: Vec<String>,
}

/// Chooses the frames that are left out of stacks, and the frame that names a row.
///
/// Copies are cheap.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Folding(Arc<FoldRules>);

impl Folding {
    /// Folds nothing: a row is named after the innermost frame.
    #[must_use]
    pub fn none() -> Self {
        FoldRules { internals: true, ..FoldRules::default() }.into()
    }

    /// The choices.
    #[must_use]
    pub fn rules(&self) -> &FoldRules {
        &self.0
    }
}

impl From<FoldRules> for Folding {
    fn from(rules: FoldRules) -> Self {
        Self(Arc::new(rules))
    }
}

/// The properties of a frame that its owner follows from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameFacts<'a> {
    /// Readable name.
    pub(crate) function: &'a str,
    /// False when the name is only a place.
    pub(crate) is_named: bool,
    /// The linkage name.
    pub(crate) raw_name: Option<&'a str>,
    /// Source file.
    pub(crate) file: Option<&'a str>,
    /// Index of the module.
    pub(crate) module: Option<u32>,
}

/// The owner of a frame, and whether the frame is folded.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Verdict {
    pub(crate) owner: Owner,
    /// The frame is folded in every stack, because of its owner.
    pub(crate) is_folded: bool,
    /// The user asked for it to be hidden.
    pub(crate) is_hidden: bool,
    /// It is the code of an interpreted language.
    pub(crate) is_interpreted: bool,
    /// The user said whether it is a wrapper: the recording does not decide.
    pub(crate) is_settled: bool,
    /// The user asked for the stacks with such a frame alone.
    pub(crate) is_in_focus: bool,
}

impl Verdict {
    fn of(owner: Owner) -> Self {
        let is_folded = match owner.kind {
            OwnerKind::StandardLibrary | OwnerKind::Runtime | OwnerKind::Wrapper | OwnerKind::Allocator => {
                true
            }
            OwnerKind::Library => rules::FOLDED_LIBRARIES.contains(&&*owner.name),
            OwnerKind::Mine | OwnerKind::Unknown | OwnerKind::Interpreter => false,
        };
        Self {
            owner,
            is_folded,
            is_hidden: false,
            is_interpreted: false,
            is_settled: false,
            is_in_focus: false,
        }
    }
}

/// Decides about the frames of one heap.
pub(crate) struct Attribution {
    folding: Folding,
    /// By module.
    modules: Vec<Owner>,
    paths: Vec<String>,
    /// Libraries are as good a name for a row as the program itself.
    is_distributed: bool,
    packages: packages::Packages,
    /// The source file of the program's `main`.
    main: Option<String>,
}

impl Attribution {
    pub(crate) fn new(stacks: &Stacks, folding: Folding) -> Self {
        let paths: Vec<String> = stacks.modules().iter().map(|module| module.path.clone()).collect();
        let program = stacks.program().map(|index| index as usize);
        let path = program.and_then(|index| paths.get(index));
        let program_path = path.map_or("", String::as_str);
        let modules = paths
            .iter()
            .enumerate()
            .map(|(index, path)| evidence::of_module(path, program_path, program == Some(index)))
            .collect();
        let is_distributed = path.is_some_and(|path| evidence::is_distributed(path));
        let packages = packages::Packages::default();
        Self { folding, modules, paths, is_distributed, packages, main: None }
    }

    pub(crate) fn folding(&self) -> &Folding {
        &self.folding
    }

    /// True when libraries are as good a name for a row as the program itself.
    pub(crate) fn is_distributed(&self) -> bool {
        self.is_distributed
    }

    /// States the source file of the program's `main`; before the first verdict.
    pub(crate) fn set_main(&mut self, file: &str) {
        let file = with_slashes(file);
        self.packages = packages::Packages::of_main(&file);
        self.main = Some(file.into_owned());
    }

    /// The rank of an owner's frames as the name of a row; the smallest is the best.
    pub(crate) fn rank(&self, kind: OwnerKind) -> u8 {
        match kind {
            _ if self.folding.0.internals => 0,
            OwnerKind::Library if self.is_distributed => 0,
            kind => kind as u8,
        }
    }

    /// Decides about a frame.
    pub(crate) fn verdict(&self, frame: &FrameFacts<'_>) -> Verdict {
        let mut verdict = self.verdict_of_tables(frame);
        let rules = &*self.folding.0;
        let owner = verdict.owner.clone();
        let text = self.text(frame, &owner);
        let matches = |patterns: &[FramePattern]| patterns.iter().any(|pattern| pattern.matches(&text));
        if matches(&rules.not_wrappers) {
            verdict.is_settled = true;
            if verdict.owner.kind == OwnerKind::Wrapper {
                verdict.owner = self.owner_of_module(frame.module);
                verdict.is_folded = false;
            }
        } else if matches(&rules.wrappers) {
            verdict = Verdict { is_settled: true, ..Verdict::of(Owner::of(OwnerKind::Wrapper, "")) };
        }
        let is_in_focus = matches(&rules.focus);
        if is_in_focus || matches(&rules.mine) {
            verdict = Verdict { is_settled: true, is_in_focus, ..Verdict::of(Owner::mine()) };
        }
        verdict.is_hidden = matches(&rules.hidden);
        verdict
    }

    /// True when a rule names the library that the program itself is.
    fn is_of_program(&self, rule: &rules::FunctionRule, plain: &str, file: Option<&str>) -> bool {
        let (Some(main), Some(file)) = (self.main.as_deref(), file) else { return false };
        let namespaces =
            rule.patterns.iter().filter(|start| start.ends_with("::") && plain.starts_with(**start));
        rule.owner == OwnerKind::Library && { namespaces }
            .any(|namespace| evidence::is_namespace_of_program(namespace, file, main))
    }

    fn text<'t>(&'t self, frame: &FrameFacts<'t>, owner: &'t Owner) -> FrameText<'t> {
        let module = frame.module.and_then(|module| self.paths.get(module as usize));
        FrameText {
            function: frame.function,
            module: module.map_or("", String::as_str),
            file: frame.file.unwrap_or(""),
            library: &owner.name,
        }
    }

    fn owner_of_module(&self, module: Option<u32>) -> Owner {
        let owner = module.and_then(|module| self.modules.get(module as usize)).cloned();
        owner.unwrap_or_else(|| Owner::of(OwnerKind::Unknown, ""))
    }

    fn verdict_of_tables(&self, frame: &FrameFacts<'_>) -> Verdict {
        let module = self.owner_of_module(frame.module);
        if !frame.is_named {
            return Verdict::of(module);
        }
        // Files decide about the code of interpreted languages, not the place of its machine code.
        if let Some(owner) =
            frame.file.and_then(evidence::of_script).or_else(|| evidence::of_jit_name(frame.function))
        {
            return Verdict { is_interpreted: true, ..Verdict::of(owner) };
        }
        let is_rust = evidence::is_rust(frame);
        let plain = plain_name(frame.function);
        let by_name = by_name(frame.function, &plain, is_rust);
        // A named library may contain anything; the allocator and the runtime are surer than files.
        if let Some(rule) = by_name.filter(|rule| rule.owner > OwnerKind::StandardLibrary) {
            return Verdict::of(Owner::of(rule.owner, rule.name));
        }
        if frame.file.is_some_and(|file| self.packages.owns(file)) {
            return Verdict::of(Owner::mine());
        }
        if let Some(owner) = frame.file.and_then(|file| evidence::of_source(file, self.main.as_deref())) {
            return Verdict::of(owner);
        }
        if let Some(rule) = by_name.filter(|rule| !self.is_of_program(rule, &plain, frame.file)) {
            return Verdict::of(Owner::of(rule.owner, rule.name));
        }
        if module.kind != OwnerKind::Mine {
            return Verdict::of(module);
        }
        if is_rust != Some(false)
            && frame.file.is_none()
            && let Some(owner) = evidence::of_crate(frame.function)
        {
            return Verdict::of(owner);
        }
        let roots = &self.folding.0.source_roots;
        match frame.file {
            Some(file) if !roots.is_empty() && !roots.iter().any(|root| evidence::is_below(file, root)) => {
                Verdict::of(Owner::library(evidence::directory_name(file)))
            }
            _ => Verdict::of(module),
        }
    }
}

/// True where the owner of a function depends on the source file of the program's `main`.
pub(crate) fn depends_on_main(function: &str, file: &str) -> bool {
    let is_librarys = |rule: &rules::FunctionRule| rule.owner == OwnerKind::Library;
    evidence::depends_on_main(file) || by_name(function, &plain_name(function), None).is_some_and(is_librarys)
}

/// The first rule that matches a function's name.
///
/// Rows of another language do not count where the language is known.
fn by_name(name: &str, plain: &str, is_rust: Option<bool>) -> Option<&'static rules::FunctionRule> {
    static EXACT: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    let exact = EXACT.get_or_init(|| {
        let mut exact = HashMap::new();
        for (index, rule) in rules::FUNCTIONS.iter().enumerate() {
            if rule.matches == rules::Matches::Name {
                rule.patterns.iter().for_each(|pattern| {
                    exact.entry(*pattern).or_insert(index);
                });
            }
        }
        exact
    });
    let path = evidence::rust_path(name);
    let first_exact = exact.get(evidence::without_clone(plain)).copied().unwrap_or(usize::MAX);
    let matches = |(index, rule): &(usize, &rules::FunctionRule)| match rule.matches {
        rules::Matches::Name => *index == first_exact,
        rules::Matches::NameStart => is_rust != Some(true) && starts_with_any(plain, rule.patterns),
        rules::Matches::RustStart => is_rust != Some(false) && starts_with_any(path, rule.patterns),
        rules::Matches::RustPart => rule.patterns.iter().any(|part| name.contains(part)),
    };
    let found = rules::FUNCTIONS.iter().enumerate().find(matches).map(|(_, rule)| rule);
    let is_standard = is_rust != Some(false) && evidence::is_rust_standard(path);
    found.or_else(|| is_standard.then_some(&evidence::RUST_STANDARD))
}

fn starts_with_any(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests;

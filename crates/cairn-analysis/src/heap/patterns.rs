//! Patterns of names, in filters and in lists of known leaks.
//!
//! The language is LeakSanitizer's, because people write their lists in it: a pattern is found
//! anywhere in a text, `*` matches any characters, `^` in front and `$` at the end match the
//! borders of the text.

use std::fmt;

use super::names::{LineId, Names};
use super::sums::Sums;
use super::{HeapProfile, LOST_STACK, OwnerKind, Position};
use crate::attribution::known_leaks::{KNOWN_LEAKS, KnownLeak, LOADER, is_one_of};

/// A pattern of names.
///
/// ```
/// use cairn_analysis::heap::Pattern;
/// assert!(Pattern::new("load*file").matches("app::load_a_file(int)"));
/// assert!(!Pattern::new("^load").matches("app::load"));
/// assert!(Pattern::new("load$").matches("app::load"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    text: String,
    parts: Vec<String>,
    at_start: bool,
    at_end: bool,
}

impl Pattern {
    /// The pattern that the text describes; every text describes one.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let inner = text.strip_prefix('^').unwrap_or(text);
        let at_start = inner.len() < text.len();
        let (inner, at_end) = match inner.strip_suffix('$') {
            Some(inner) => (inner, true),
            None => (inner, false),
        };
        let parts = inner.split('*').map(str::to_owned).collect();
        Self { text: text.to_owned(), parts, at_start, at_end }
    }

    /// True when the pattern is found in `text`.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let mut rest = text;
        let last = self.parts.len() - 1;
        for (index, part) in self.parts.iter().enumerate() {
            let held_at_start = index == 0 && self.at_start;
            if index == last && self.at_end {
                return rest.ends_with(part.as_str()) && (!held_at_start || rest.len() == part.len());
            }
            if held_at_start {
                match rest.strip_prefix(part.as_str()) {
                    Some(behind) => rest = behind,
                    None => return false,
                }
            } else {
                match rest.find(part.as_str()) {
                    Some(at) => rest = &rest[at + part.len()..],
                    None => return false,
                }
            }
        }
        true
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A list of known leaks, as LeakSanitizer reads them: `leak:PATTERN` a line, `#` begins a comment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Suppressions {
    patterns: Vec<Pattern>,
    has_known: bool,
}

/// A line of a list of known leaks that cannot be parsed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadSuppression {
    /// Its number, from 1.
    pub line: usize,
    /// Its text.
    pub text: String,
}

impl fmt::Display for BadSuppression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}: {:?} is no suppression; write leak:PATTERN, or # and a comment",
            self.line, self.text
        )
    }
}

impl std::error::Error for BadSuppression {}

impl Suppressions {
    /// Reads a list.
    ///
    /// # Errors
    ///
    /// [`BadSuppression`] for the first line that is neither empty, nor a comment, nor `leak:` and
    /// a pattern.
    pub fn parse(text: &str) -> Result<Self, BadSuppression> {
        let mut patterns = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match line.strip_prefix("leak:") {
                Some(pattern) if !pattern.is_empty() => patterns.push(Pattern::new(pattern)),
                _ => return Err(BadSuppression { line: index + 1, text: line.chars().take(200).collect() }),
            }
        }
        Ok(Self { patterns, has_known: false })
    }

    /// The [leaks that every program has](crate::attribution::known_leaks).
    #[must_use]
    pub const fn known() -> Self {
        Self { patterns: Vec::new(), has_known: true }
    }

    /// Adds the lines of another list.
    pub fn extend(&mut self, other: Self) {
        self.patterns.extend(other.patterns);
        self.has_known |= other.has_known;
    }

    /// True when nothing is suppressed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty() && !self.has_known
    }
}

/// How much a suppression held back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suppressed {
    /// The pattern; for a leak that every program has, its name.
    pub name: String,
    /// Why it is no leak of the program, for one that every program has.
    pub reason: Option<&'static str>,
    /// Leaked blocks.
    pub blocks: u64,
    /// Leaked bytes.
    pub bytes: u64,
}

impl Suppressions {
    /// Splits a profile into the leaks that each pattern leaves out, and the rest.
    ///
    /// The leaks still count for everything else, and in the sums of threads and sizes. Only the
    /// names of stacks that leak are requested; for the leaks that every program has, only those
    /// that [`Names::askers`] needs.
    #[must_use]
    pub fn apply(&self, profile: &HeapProfile, names: &mut Names<'_>) -> (Vec<Suppressed>, HeapProfile) {
        let mut held_back: Vec<Suppressed> = self
            .patterns
            .iter()
            .map(|pattern| Suppressed { name: pattern.to_string(), reason: None, blocks: 0, bytes: 0 })
            .collect();
        let own = held_back.len();
        let mut rest = profile.clone();
        let rows = rest.stacks.iter_mut().enumerate().map(|(stack, sums)| (stack as u32, sums));
        let leaking: Vec<(u32, &mut Sums)> = rows
            .chain([(LOST_STACK, &mut rest.lost_stack)])
            .filter(|(_, sums)| sums.live_blocks > 0)
            .collect();
        if !self.patterns.is_empty() {
            names.find_stacks(leaking.iter().map(|&(stack, _)| stack));
        }
        let stacks: Vec<u32> = leaking.iter().map(|&(stack, _)| stack).collect();
        let askers =
            if self.has_known { names.askers(&stacks) } else { vec![Position::default(); stacks.len()] };
        for ((stack, sums), asker) in leaking.into_iter().zip(askers) {
            let by_pattern = self.patterns.iter().position(|pattern| stack_matches(names, stack, pattern));
            let known = || self.has_known.then(|| known_leak(names, stack, asker)).flatten();
            let index = by_pattern.or_else(|| {
                let KnownLeak { name, reason, .. } = known()?;
                let same = held_back[own..].iter().position(|entry| entry.name == *name);
                Some(
                    own + same.unwrap_or_else(|| {
                        let (name, reason) = ((*name).to_owned(), Some(*reason));
                        held_back.push(Suppressed { name, reason, blocks: 0, bytes: 0 });
                        held_back.len() - 1 - own
                    }),
                )
            });
            let Some(entry) = index.and_then(|index| held_back.get_mut(index)) else { continue };
            entry.blocks += sums.live_blocks;
            entry.bytes = entry.bytes.saturating_add(sums.live_bytes);
            rest.totals.live_blocks = rest.totals.live_blocks.saturating_sub(sums.live_blocks);
            rest.totals.live_bytes = rest.totals.live_bytes.saturating_sub(sums.live_bytes);
            (sums.live_blocks, sums.live_bytes) = (0, 0);
        }
        held_back.retain(|entry| entry.blocks > 0);
        (held_back, rest)
    }
}

/// The leak of every program that a stack is.
///
/// Its mark is between the allocator and the frame that names its row.
fn known_leak(names: &Names<'_>, stack: u32, asker: Position) -> Option<&'static KnownLeak> {
    let mut is_innermost = true;
    for on_path in names.stacks().path(stack) {
        for (inlined, &line) in names.at(on_path).iter().enumerate() {
            if names.owner_kind(line) == OwnerKind::Allocator {
                continue;
            }
            let (function, module) = (&names.function_of(line).name, names.module_name(line));
            let is_known = |leak: &&KnownLeak| {
                leak.matches(function, module, is_innermost)
                    && (!leak.is_constructor || is_called_by_loader(names, on_path))
            };
            if let Some(leak) = KNOWN_LEAKS.iter().find(is_known) {
                return Some(leak);
            }
            is_innermost = false;
            if (Position { stack: on_path, inlined: inlined as u32 }) == asker {
                return None;
            }
        }
    }
    None
}

/// True when the loader calls the module of a stack's innermost address: one of its constructors.
///
/// The loader's own callers do not count: `dlopen` runs constructors in the middle of a program.
fn is_called_by_loader(names: &Names<'_>, stack: u32) -> bool {
    let stacks = names.stacks();
    let module = |stack: u32| {
        let address = stacks.innermost(stack).and_then(|address| stacks.address(address));
        address.and_then(|address| stacks.modules().get(address.module?.0 as usize))
    };
    let own = module(stack);
    let caller = stacks.path(stack).skip(1).map(module).find(|caller| *caller != own);
    caller.flatten().is_some_and(|caller| is_one_of(caller.name(), LOADER))
}

fn line_matches(names: &Names<'_>, line: LineId, pattern: &Pattern) -> bool {
    let source = names.source_line(line);
    pattern.matches(&names.function(source.function).name)
        || source.file.as_deref().is_some_and(|file| pattern.matches(file))
        || pattern.matches(names.module_path(line))
}

fn stack_matches(names: &Names<'_>, stack: u32, pattern: &Pattern) -> bool {
    if stack == LOST_STACK {
        return line_matches(names, names.at_position(Position { stack, inlined: 0 }), pattern);
    }
    names
        .stacks()
        .path(stack)
        .any(|stack| names.at(stack).iter().any(|&line| line_matches(names, line, pattern)))
}

/// Marks the stacks whose frames match one of `functions` and one of `modules`.
///
/// Any frame's function may match, and any frame's module; an empty list matches all. For
/// [`Scope::stacks`](super::Scope::stacks).
#[must_use]
pub fn stacks_with(names: &mut Names<'_>, functions: &[Pattern], modules: &[Pattern]) -> Vec<bool> {
    let stacks = names.stacks();
    if !functions.is_empty() {
        names.find(0..stacks.addresses().len() as u32);
    }
    let module_has: Vec<bool> = stacks
        .modules()
        .iter()
        .map(|module| modules.iter().any(|pattern| pattern.matches(&module.path)))
        .collect();
    let mut has: Vec<(bool, bool)> = vec![(functions.is_empty(), modules.is_empty()); stacks.len()];
    for stack in 1..stacks.len() as u32 {
        // Parents come first, and what an outer frame has the inner ones have.
        let (mut function, mut module) = stacks.parent(stack).map_or(has[0], |parent| has[parent as usize]);
        function |= names
            .at(stack)
            .iter()
            .any(|&line| functions.iter().any(|pattern| pattern.matches(&names.function_of(line).name)));
        let address = stacks.innermost(stack).and_then(|address| stacks.address(address));
        module |=
            address.and_then(|address| address.module).is_some_and(|(module, _)| module_has[module as usize]);
        has[stack as usize] = (function, module);
    }
    has.into_iter().map(|(function, module)| function && module).collect()
}

/// Marks the stacks that filters and the focus of `names` count; `None` where they count all.
///
/// For [`Scope::stacks`](super::Scope::stacks).
#[must_use]
pub fn counted_stacks(
    names: &mut Names<'_>,
    functions: &[Pattern],
    modules: &[Pattern],
) -> Option<Vec<bool>> {
    let is_filtered = !functions.is_empty() || !modules.is_empty();
    let filtered = is_filtered.then(|| stacks_with(names, functions, modules));
    match (filtered, stacks_in_focus(names)) {
        (Some(one), Some(other)) => Some(one.iter().zip(&other).map(|(&a, &b)| a && b).collect()),
        (one, other) => one.or(other),
    }
}

/// Marks the stacks with a frame in focus; `None` where nothing was put into focus.
///
/// For [`Scope::stacks`](super::Scope::stacks); the names of all addresses are found.
#[must_use]
pub fn stacks_in_focus(names: &mut Names<'_>) -> Option<Vec<bool>> {
    if names.folding().rules().focus.is_empty() {
        return None;
    }
    let stacks = names.stacks();
    names.find(0..stacks.addresses().len() as u32);
    let mut has = vec![false; stacks.len()];
    for stack in 1..stacks.len() as u32 {
        // Parents come first, and what an outer frame has the inner ones have.
        let outer = stacks.parent(stack).is_some_and(|parent| has[parent as usize]);
        let here = || names.at(stack).iter().any(|&line| names.verdict(line).is_in_focus);
        has[stack as usize] = outer || here();
    }
    Some(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_leak_sanitizer_does() {
        let cases = [
            ("foo", "a foo b", true),
            ("foo", "fo", false),
            ("^foo", "foobar", true),
            ("^foo", "a foo", false),
            ("foo$", "a foo", true),
            ("foo$", "foo a", false),
            ("^foo$", "foo", true),
            ("^foo$", "foofoo", false),
            ("a*b*c", "xxaxxbxxcxx", true),
            ("a*b*c", "acb", false),
            ("^a*c$", "abc", true),
            ("^a*c$", "abcd", false),
            ("*", "", true),
            ("a*a$", "a", false),
            ("", "anything", true),
            ("a$b", "a$b", true),
            ("ö*", "schön", true),
        ];
        for (pattern, text, matches) in cases {
            assert_eq!(Pattern::new(pattern).matches(text), matches, "{pattern} in {text}");
        }
    }

    #[test]
    fn lists_of_known_leaks_are_read_or_refused_by_line() {
        let list = Suppressions::parse("# known\n\n leak:libfoo.so \nleak:^main$\r\n").expect("sound");
        assert_eq!(list.patterns, [Pattern::new("libfoo.so"), Pattern::new("^main$")]);
        let error = Suppressions::parse("leak:a\nrace:b\n").expect_err("a race is no leak");
        assert_eq!(error, BadSuppression { line: 2, text: "race:b".into() });
        assert!(Suppressions::parse("leak:").is_err());
    }
}

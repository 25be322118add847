//! Patterns that choose frames, in options and in the project file.

use std::fmt;
use std::str::FromStr;

use crate::heap::Pattern;

/// The property of a frame that a pattern is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameProperty {
    /// The function's readable name.
    Function,
    /// The module's path.
    Module,
    /// The source file's path.
    File,
    /// The name of the library or crate that owns it.
    Crate,
}

/// The texts of a frame that patterns are compared with; empty where one is not known.
#[derive(Clone, Copy, Debug)]
pub struct FrameText<'a> {
    /// The function's readable name.
    pub function: &'a str,
    /// The module's path.
    pub module: &'a str,
    /// The source file's path.
    pub file: &'a str,
    /// The library or crate.
    pub library: &'a str,
}

/// A pattern of frames.
///
/// It is compared with any property, or with the one in front of it: `function=`, `module=`,
/// `file=` or `crate=`.
///
/// ```
/// use cairn_analysis::attribution::{FramePattern, FrameText};
///
/// let frame = FrameText { function: "zmalloc", module: "/opt/redis", file: "src/zmalloc.c", library: "" };
/// let matches = |text: &str| text.parse::<FramePattern>().unwrap().matches(&frame);
/// assert!(matches("^zmalloc$") && matches("module=redis") && matches("file=src/*.c$"));
/// assert!(!matches("function=redis"));
/// assert!("".parse::<FramePattern>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FramePattern {
    property: Option<FrameProperty>,
    pattern: Pattern,
    text: String,
}

/// A pattern that would match every frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadFramePattern;

impl fmt::Display for BadFramePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an empty pattern matches every frame; write function=PATTERN, module=, file= or crate=")
    }
}

impl std::error::Error for BadFramePattern {}

impl FromStr for FramePattern {
    type Err = BadFramePattern;

    fn from_str(text: &str) -> Result<Self, BadFramePattern> {
        let property = |name: &str| match name {
            "function" => Some(FrameProperty::Function),
            "module" => Some(FrameProperty::Module),
            "file" => Some(FrameProperty::File),
            "crate" => Some(FrameProperty::Crate),
            _ => None,
        };
        // Names of functions may contain `=`: only these four words are properties.
        let split = text.split_once('=').and_then(|(name, rest)| Some((property(name)?, rest)));
        let (property, pattern) = split.map_or((None, text), |(property, rest)| (Some(property), rest));
        if pattern.trim_matches(['*', '^', '$', ' ']).is_empty() {
            return Err(BadFramePattern);
        }
        Ok(Self { property, pattern: Pattern::new(pattern), text: text.to_owned() })
    }
}

impl fmt::Display for FramePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FramePattern {
    /// True when the frame has a text that matches.
    #[must_use]
    pub fn matches(&self, frame: &FrameText<'_>) -> bool {
        let has = |text: &str| !text.is_empty() && self.pattern.matches(text);
        match self.property {
            Some(FrameProperty::Function) => has(frame.function),
            Some(FrameProperty::Module) => has(frame.module),
            Some(FrameProperty::File) => has(frame.file),
            Some(FrameProperty::Crate) => has(frame.library),
            None => has(frame.function) || has(frame.module) || has(frame.file) || has(frame.library),
        }
    }
}

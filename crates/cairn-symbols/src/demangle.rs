//! Mangled names to readable ones: Rust (legacy and v0), C++ (Itanium and MSVC).
//!
//! Names come from files that nobody vouches for, and a few bytes of one can describe gigabytes of text: back references
//! double it at every step. So every name has three limits, of its length, of the text that comes out and of the steps
//! taken, and a name that exceeds one is shown as it stands. So is one that is in no known scheme: a raw name is an answer.
//!
//! Swift's names (`$s…`) stay raw: no small crate reads them, and the large one brings a C++ library along.
//!
//! The same few thousand names turn up again and again in stacks, so callers keep what they got.

use std::borrow::Cow;
use std::fmt;

use msvc_demangler::DemangleFlags;

use crate::source::Language;

/// Longer names stay raw. The longest of real programs, of heavily templated C++, have some 30 KiB.
pub const MAX_MANGLED_BYTES: usize = 64 << 10;

/// Names whose readable form is longer stay raw.
pub const MAX_DEMANGLED_BYTES: usize = 64 << 10;

/// Pieces that a readable name may be written in; a name of 64 KiB has some twenty thousand. What bounds the time of
/// names that expand to many pieces of nothing.
const MAX_PIECES: usize = 1 << 17;

/// Nesting within a C++ name; 96 is what its demangler takes for safe on a small stack.
const MAX_NESTING: u32 = 96;

/// MSVC names longer than this stay raw: its demangler calls itself for every level, which may be two characters.
const MAX_MSVC_BYTES: usize = 1024;

/// Nodes that an MSVC name may expand to by its back references. Its demangler copies what they stand for.
const MAX_MSVC_NODES: f64 = 1e6;

/// How a name is mangled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Scheme {
    /// Rust before 1.95 by default: `_ZN…17h0123456789abcdefE`.
    RustLegacy,
    /// Rust's own scheme: `_R…`.
    RustV0,
    /// C++ everywhere but with Microsoft's compilers: `_Z…`.
    Itanium,
    /// C++ of Microsoft's compilers: `?…`.
    Msvc,
}

/// Tells by its first characters in which scheme a name claims to be.
///
/// ```
/// use cairn_symbols::demangle::{Scheme, scheme};
///
/// assert_eq!(scheme("_ZN3std2io5Write9write_all17h0123456789abcdefE"), Some(Scheme::RustLegacy));
/// assert_eq!(scheme("_ZN5space3fooEibc"), Some(Scheme::Itanium));
/// assert_eq!(scheme("main"), None);
/// ```
#[must_use]
pub fn scheme(name: &str) -> Option<Scheme> {
    // Where the format puts an underscore before every name, sources strip it; some names arrive with it all the same.
    let bare = name.strip_prefix('_').filter(|rest| rest.starts_with('_')).unwrap_or(name);
    match bare.as_bytes() {
        [b'_', b'R', ..] => Some(Scheme::RustV0),
        [b'_', b'Z', b'N', ..] if has_rust_hash(bare) => Some(Scheme::RustLegacy),
        [b'_', b'Z', ..] => Some(Scheme::Itanium),
        [b'?', _, ..] => Some(Scheme::Msvc),
        _ if name.starts_with("___Z") || is_global_constructor(name) => Some(Scheme::Itanium),
        _ => None,
    }
}

/// The readable form of a name; the name itself when it is not mangled, broken, or beyond a limit.
///
/// Parameters and return types are written where the scheme has them. Rust's hashes are not.
///
/// ```
/// use cairn_symbols::demangle::readable;
///
/// assert_eq!(readable("_ZN5space3fooEibc"), "space::foo(int, bool, char)");
/// assert_eq!(readable("_RNvC5crate4main"), "crate::main");
/// assert_eq!(readable("?area@shapes@@YAHHH@Z"), "shapes::area(int, int)");
/// assert_eq!(readable("main"), "main");
/// ```
#[must_use]
pub fn readable(name: &str) -> Cow<'_, str> {
    demangle(name, Language::Unknown).map_or(Cow::Borrowed(name), Cow::Owned)
}

/// The readable form of a name of this language; `None` when it is not mangled, broken, or beyond a limit.
///
/// The language only rules out: one file holds names of several schemes, and its language says nothing of their versions.
pub(crate) fn demangle(name: &str, language: Language) -> Option<String> {
    if name.len() > MAX_MANGLED_BYTES || matches!(language, Language::Plain | Language::Swift) {
        return None;
    }
    match scheme(name)? {
        Scheme::RustLegacy | Scheme::RustV0 => rust(name),
        Scheme::Itanium => itanium(name),
        Scheme::Msvc => msvc(name),
    }
}

/// `17h`, sixteen hexadecimal digits, `E`, and then at most a suffix of the linker.
fn has_rust_hash(name: &str) -> bool {
    let end = name.find('.').unwrap_or(name.len());
    // Legacy names hold dots themselves (`..`), so the mark is looked for from the end of the last `E` too.
    [end, name.rfind('E').map_or(0, |at| at + 1)].into_iter().any(|end| {
        let tail = end.checked_sub(20).and_then(|start| name.get(start..end));
        tail.and_then(|tail| tail.strip_prefix("17h")?.strip_suffix('E'))
            .is_some_and(|hash| hash.bytes().all(|digit| digit.is_ascii_hexdigit()))
    })
}

/// `_GLOBAL__I_…`: code that constructs (`I`) or destroys (`D`) what is global.
fn is_global_constructor(name: &str) -> bool {
    matches!(
        name.as_bytes(),
        [b'_', b'G', b'L', b'O', b'B', b'A', b'L', b'_', b'_' | b'.' | b'$', b'I' | b'D', b'_', ..]
    )
}

fn rust(name: &str) -> Option<String> {
    use fmt::Write;
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    // Readable forms of this scheme are mostly the shorter ones.
    let mut text = Bounded { text: String::with_capacity(name.len()), pieces: 0 };
    write!(text, "{demangled:#}").ok()?;
    // What the scheme's printer says when it gives up inside of a name.
    let gave_up = ["{invalid syntax}", "{recursion limit reached}", "{size limit reached}"];
    text.finish().filter(|text| !text.contains('{') || !gave_up.iter().any(|mark| text.contains(mark)))
}

/// The demangler takes identifiers of ASCII alone. Others stand in the name as UTF-8, so they are demangled under other
/// names of ASCII, and put back afterwards.
fn itanium(name: &str) -> Option<String> {
    if name.is_ascii() {
        return itanium_ascii(name);
    }
    let (ascii, identifiers) = with_stand_ins(name)?;
    let text = itanium_ascii(&ascii)?;
    let mut pieces = text.split(STAND_IN);
    let mut whole = Bounded::default();
    fmt::Write::write_str(&mut whole, pieces.next()?).ok()?;
    for piece in pieces {
        let (number, rest) = piece.split_once(STAND_IN_END)?;
        let identifier = identifiers.get(number.parse::<usize>().ok()?)?;
        fmt::Write::write_str(&mut whole, identifier).ok()?;
        fmt::Write::write_str(&mut whole, rest).ok()?;
    }
    whole.finish()
}

/// What stands in for an identifier: this, its number, and the end.
const STAND_IN: &str = "StandInOfUnicode";

const STAND_IN_END: char = 'Q';

/// The name with an identifier of ASCII for each that is not, and these in their order.
///
/// An identifier is a number and as many bytes. Other numbers are those of literals (`Li42E`), of arrays (`A10_c`) and of
/// back references (`S1_`, `T0_`). Taken for an identifier by mistake, one leads to a name that is none, which stays raw.
fn with_stand_ins(name: &str) -> Option<(String, Vec<&str>)> {
    if name.contains(STAND_IN) {
        return None;
    }
    let bytes = name.as_bytes();
    let (mut ascii, mut identifiers) = (String::with_capacity(name.len()), Vec::new());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            ascii.push(char::from(byte));
            at += 1;
            continue;
        }
        let number = &name[at..at + digits];
        let behind = &bytes[at + digits..];
        let is_literal = behind.first() == Some(&b'E') && is_literal_before(&bytes[..at]);
        let is_reference =
            behind.first() == Some(&b'_') && matches!(bytes[..at], [.., b'A' | b'S' | b'T' | b'_']);
        let begin = at + digits;
        let identifier = number.parse().ok().and_then(|len: usize| name.get(begin..begin.checked_add(len)?));
        match identifier.filter(|text| !is_literal && !is_reference && is_identifier(text)) {
            Some(identifier) if identifier.is_ascii() => {
                ascii.push_str(&name[at..begin + identifier.len()]);
                at = begin + identifier.len();
            }
            Some(identifier) => {
                let stand_in = format!("{STAND_IN}{}{STAND_IN_END}", identifiers.len());
                ascii.push_str(&format!("{}{stand_in}", stand_in.len()));
                identifiers.push(identifier);
                at = begin + identifier.len();
            }
            None => {
                ascii.push_str(number);
                at = begin;
            }
        }
    }
    ascii.is_ascii().then_some((ascii, identifiers))
}

/// True behind the type of a literal, and its sign: `Li`, `Lin`.
fn is_literal_before(before: &[u8]) -> bool {
    let unsigned = before.strip_suffix(b"n").unwrap_or(before);
    [before, unsigned].iter().any(|before| matches!(before, [.., b'L', kind] if kind.is_ascii_lowercase()))
}

fn is_identifier(text: &str) -> bool {
    let part = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.');
    text.chars().all(part) && !text.starts_with(|c: char| c.is_ascii_digit())
}

fn itanium_ascii(name: &str) -> Option<String> {
    // A version of a symbol (`@GLIBC_2.34`, `@plt`) is no part of the name, but of what the reader should see.
    let (bare, version) = name.split_at(name.find('@').unwrap_or(name.len()));
    let bare = bare.strip_prefix('_').filter(|rest| rest.starts_with("_Z")).unwrap_or(bare);
    let parsing = cpp_demangle::ParseOptions::default().recursion_limit(MAX_NESTING);
    let symbol = cpp_demangle::BorrowedSymbol::new_with_options(bare.as_bytes(), &parsing).ok()?;
    let mut text = Bounded::default();
    let writing = cpp_demangle::DemangleOptions::default().recursion_limit(MAX_NESTING);
    symbol.structured_demangle(&mut text, &writing).ok()?;
    if let Some(plain) = plain_thunk(&text.text) {
        text.text = plain;
    }
    fmt::Write::write_str(&mut text, version).ok()?;
    text.finish()
}

/// The demangler writes the offsets of a thunk; other tools write `virtual thunk to` the function, and so do we.
fn plain_thunk(text: &str) -> Option<String> {
    let inside = text.strip_prefix("{virtual override thunk({")?.strip_suffix(")}")?;
    let (offset, function) = inside.split_once("}, ")?;
    let kind = if offset.starts_with("virtual ") { "virtual" } else { "non-virtual" };
    Some(format!("{kind} thunk to {function}"))
}

fn msvc(name: &str) -> Option<String> {
    if name.len() > MAX_MSVC_BYTES || msvc_nodes(name) > MAX_MSVC_NODES {
        return None;
    }
    // Name and parameters, as for the other schemes; also what is a member of what, and who may call it, stays out.
    let flags = DemangleFlags::llvm()
        | DemangleFlags::NO_ACCESS_SPECIFIERS
        | DemangleFlags::NO_FUNCTION_RETURNS
        | DemangleFlags::NO_MEMBER_TYPE
        | DemangleFlags::NO_MS_KEYWORDS
        | DemangleFlags::NO_CLASS_TYPE;
    #[cfg(test)]
    tests::note_msvc(name);
    let text = msvc_demangler::demangle(name, flags).ok()?;
    (text.len() <= MAX_DEMANGLED_BYTES).then_some(text)
}

/// At most so many nodes can an MSVC name expand to.
///
/// A back reference is one digit and stands for something that was complete before. It multiplies when it stands for
/// something with digits in it, a template or a function's type. `d` digits in `n` such levels make the most of it when
/// each has the same share. Digits of identifiers are left out as far as they show: they follow a small letter.
fn msvc_nodes(name: &str) -> f64 {
    let bytes = name.as_bytes();
    let counts = |pair: &[u8]| pair[1].is_ascii_digit() && !(pair[0].is_ascii_lowercase() || pair[0] == b'_');
    let digits = bytes.windows(2).filter(|pair| counts(pair)).count();
    let opens = |pair: &[u8]| matches!(pair, b"?$" | [b'P' | b'Q' | b'R' | b'S' | b'A' | b'E', b'6' | b'8']);
    let levels = bytes.windows(2).filter(|pair| opens(pair)).count() + 1;
    let (digits, levels) = (digits as f64, levels as f64);
    (digits / levels + 1.0).powf(levels)
}

/// Text that refuses to grow beyond its limits.
#[derive(Default)]
struct Bounded {
    text: String,
    pieces: usize,
}

impl Bounded {
    fn finish(self) -> Option<String> {
        (self.text.len() <= MAX_DEMANGLED_BYTES).then_some(self.text)
    }
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.pieces += 1;
        #[cfg(test)]
        tests::note_piece(piece);
        if self.pieces > MAX_PIECES || self.text.len() + piece.len() > MAX_DEMANGLED_BYTES {
            return Err(fmt::Error);
        }
        self.text.push_str(piece);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// What demangling one name took.
    #[derive(Clone, Copy, Default, Debug)]
    struct Work {
        /// Pieces of text that were written, and their bytes, whether or not they were taken.
        pieces: usize,
        bytes: usize,
        /// Bytes of the names given to the demangler of MSVC's scheme, and the nodes that they may
        /// expand to.
        msvc_bytes: usize,
        msvc_nodes: f64,
    }

    thread_local! {
        static WORK: Cell<Work> = const { Cell::new(Work { pieces: 0, bytes: 0, msvc_bytes: 0, msvc_nodes: 0.0 }) };
    }

    pub(super) fn note_piece(piece: &str) {
        let work = WORK.get();
        WORK.set(Work { pieces: work.pieces + 1, bytes: work.bytes + piece.len(), ..work });
    }

    pub(super) fn note_msvc(name: &str) {
        let work = WORK.get();
        let (msvc_bytes, msvc_nodes) = (work.msvc_bytes + name.len(), work.msvc_nodes + msvc_nodes(name));
        WORK.set(Work { msvc_bytes, msvc_nodes, ..work });
    }

    #[test]
    fn names_of_each_scheme_become_readable() {
        for (name, scheme_, expected) in [
            (
                "_ZN4core3ptr13drop_in_place17h0123456789abcdefE",
                Some(Scheme::RustLegacy),
                "core::ptr::drop_in_place",
            ),
            (
                "_ZN63_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$core..iter..Extend$GT$6extend17hfedcba9876543210E.llvm.123ABC",
                Some(Scheme::RustLegacy),
                "<alloc::vec::Vec<T> as core::iter::Extend>::extend",
            ),
            ("_RNvCskwGfYPst2Cb_3foo16example_function", Some(Scheme::RustV0), "foo::example_function"),
            ("__RNvC1a1b", Some(Scheme::RustV0), "a::b"),
            ("_ZN5space3fooEibc", Some(Scheme::Itanium), "space::foo(int, bool, char)"),
            ("__ZN5space3fooEibc", Some(Scheme::Itanium), "space::foo(int, bool, char)"),
            (
                "_ZN6shapes12_GLOBAL__N_15countE",
                Some(Scheme::Itanium),
                "shapes::(anonymous namespace)::count",
            ),
            ("_ZN6测试6middleEi", Some(Scheme::Itanium), "测试::middle(int)"),
            ("_ZN6测试C1Ev", Some(Scheme::Itanium), "测试::测试()"),
            (
                "_ZN6测试5éfooIiLi42ELin7EA10_cEEvT_RKS_@V_1.0",
                Some(Scheme::Itanium),
                "void 测试::éfoo<int, 42, -7, char [10]>(int, 测试 const&)@V_1.0",
            ),
            ("_ZN3fooI7größeE3barEPS0_", Some(Scheme::Itanium), "foo<größe>::bar(größe*)"),
            // The number ends within a character, or says more than there is.
            ("_ZN5测试C1Ev", Some(Scheme::Itanium), "_ZN5测试C1Ev"),
            ("_Z99999999999999999999999é", Some(Scheme::Itanium), "_Z99999999999999999999999é"),
            ("_Z18StandInOfUnicode1Q2é", Some(Scheme::Itanium), "_Z18StandInOfUnicode1Q2é"),
            ("_ZN3foo3barEv.cold", Some(Scheme::Itanium), "foo::bar() [clone .cold]"),
            ("_ZNSsC1Ev@GLIBCXX_3.4", Some(Scheme::Itanium), "std::string::string()@GLIBCXX_3.4"),
            (
                "_ZNKSt6vectorIiSaIiEE4sizeEv",
                Some(Scheme::Itanium),
                "std::vector<int, std::allocator<int> >::size() const",
            ),
            (
                "_ZTv0_n24_NSt10ostrstreamD1Ev",
                Some(Scheme::Itanium),
                "virtual thunk to std::ostrstream::~ostrstream()",
            ),
            (
                "_ZThn16_NSdD1Ev",
                Some(Scheme::Itanium),
                "non-virtual thunk to std::basic_iostream<char, std::char_traits<char> >::~basic_iostream()",
            ),
            ("?area@shapes@@YAHHH@Z", Some(Scheme::Msvc), "shapes::area(int, int)"),
            ("main", None, "main"),
            ("", None, ""),
            ("_", None, "_"),
            ("?", None, "?"),
            ("$s4main3fooyyF", None, "$s4main3fooyyF"),
            // Begins like a mangled name and is none.
            ("_Zero", Some(Scheme::Itanium), "_Zero"),
            ("_Rust", Some(Scheme::RustV0), "_Rust"),
            ("?what", Some(Scheme::Msvc), "?what"),
            ("_GLOBAL__sub_I_main", None, "_GLOBAL__sub_I_main"),
        ] {
            assert_eq!(scheme(name), scheme_, "{name}");
            assert_eq!(readable(name), expected, "{name}");
        }
    }

    // Failed with: more than 200 ms of wall time on a busy machine.
    #[test]
    fn hostile_names_stay_raw_and_cost_little() {
        // Each level of these refers to the one before twice or more.
        let doubling: String =
            (0..200).map(|level| format!("S{}_S{}_", base36(level), base36(level))).collect();
        let tuples: String = (0..60).map(|_| "TB_B_").collect();
        let functions = |levels: usize, references: usize| -> String {
            (0..levels).map(|level| format!("P6AX{}@Z", level.to_string().repeat(references))).collect()
        };
        // Of the same shape, and harmless.
        assert!(readable(&format!("?f@@YAXPAH{}@Z", functions(3, 4))).matches("int").count() > 4 * 4 * 4);
        let functions = functions(9, 40);
        for name in [
            format!("_Z1fP{}i{doubling}", "P".repeat(60)),
            format!("_ZN2é{}", "1aI".repeat(10_000)),
            format!("_Z{}", "2é".repeat(16_000)),
            format!("_Z{}", "N1aI".repeat(10_000)),
            format!("_Z1f{}i", "P".repeat(60_000)),
            format!("_RNvC1a1b{}", "I".repeat(30_000)),
            format!("_RMC1aT{tuples}E"),
            format!("_RINvC1a1b{}E", "RS".repeat(20_000)),
            format!("?f@@YAX{}@Z", "PA".repeat(5_000)),
            format!("?f@@YAX{}@Z", "PA".repeat(500)),
            format!("?f@@YAXPAH{functions}@Z"),
            format!("_ZN{}17h0123456789abcdefE", "1a".repeat(40_000)),
            "_Z".repeat(40_000),
            "?".repeat(900),
            "x".repeat(100 << 20),
        ] {
            WORK.set(Work::default());
            assert_eq!(readable(&name), name, "{}", &name[..name.len().min(60)]);
            let Work { pieces, bytes, msvc_bytes, msvc_nodes } = WORK.get();
            let within = if name.len() > MAX_MANGLED_BYTES {
                // Too long to be read at all.
                pieces == 0 && msvc_bytes == 0
            } else {
                // The piece that goes too far comes on top: it is a part of the name, or a few
                // words.
                pieces <= MAX_PIECES + 1
                    && bytes <= MAX_DEMANGLED_BYTES + MAX_MANGLED_BYTES
                    && msvc_bytes <= MAX_MSVC_BYTES
                    && msvc_nodes <= MAX_MSVC_NODES
            };
            assert!(within, "{:?} for {}", WORK.get(), &name[..name.len().min(60)]);
        }
    }

    /// The sequence numbers of Itanium's substitutions: nothing, 0, 1, … Z, 10, …
    fn base36(level: usize) -> String {
        match level.checked_sub(1) {
            None => String::new(),
            Some(number @ 0..36) => char::from_digit(number as u32, 36).unwrap().to_ascii_uppercase().into(),
            Some(number) => base36(number / 36) + &base36(number % 36 + 1),
        }
    }
}

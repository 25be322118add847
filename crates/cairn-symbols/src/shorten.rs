//! Shortens readable names to what people say: `std::vector<Order>` in place of
//! `std::vector<Order, std::allocator<Order> >`.
//!
//! A name is split at its brackets into a tree, the tree is simplified by the tables of this file,
//! and written again. A name whose brackets do not match, or that would become longer, stays as it
//! is. So a short name has matching brackets if the name has, and is never longer; a short name is
//! its own short name.
//!
//! ```text
//!   std::map<int, A<char>, std::less<int> >::find(int const&) const
//!   text    angle: 3 arguments             text  round        text
//! ```

mod fit;
mod pieces;
mod tables;

use std::borrow::Cow;

use crate::demangle::MAX_DEMANGLED_BYTES;
use pieces::{Bracket, NamePiece, parse};
use tables::{ALIASES, ANONYMOUS, DEFAULTS, INLINE_NAMESPACES, RUST_PATHS};

pub use fit::fit;

/// Returns a name without parts that readers know anyway.
///
/// These are default template arguments, inline namespaces, paths of well-known types, and hashes.
///
/// ```
/// use cairn_symbols::shorten::shorten;
///
/// assert_eq!(shorten("std::vector<Order, std::allocator<Order> >::size() const"), "std::vector<Order>::size() const");
/// assert_eq!(shorten("f(std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >)"), "f(std::string)");
/// assert_eq!(shorten("<alloc::vec::Vec<u8> as core::clone::Clone>::clone"), "<Vec<u8> as Clone>::clone");
/// ```
#[must_use]
pub fn shorten(name: &str) -> Cow<'_, str> {
    shortened(name, false)
}

/// Shortens a name, and drops parameter lists and the return type.
///
/// For lists in which a file and a line distinguish overloads.
///
/// ```
/// use cairn_symbols::shorten::shorten_without_parameters;
///
/// assert_eq!(shorten_without_parameters("void shop::load<int>(int, char const*)"), "shop::load<int>");
/// assert_eq!(shorten_without_parameters("Shop::operator()(int) const"), "Shop::operator()");
/// ```
#[must_use]
pub fn shorten_without_parameters(name: &str) -> Cow<'_, str> {
    shortened(name, true)
}

fn shortened(name: &str, drops_parameters: bool) -> Cow<'_, str> {
    if name.len() > MAX_DEMANGLED_BYTES {
        return Cow::Borrowed(name);
    }
    let mut short = Cow::Borrowed(name);
    for _ in 0..MAX_PASSES {
        match pass(&short, drops_parameters) {
            Some(shorter) => short = Cow::Owned(shorter),
            None => return short,
        }
    }
    Cow::Borrowed(name)
}

/// Maximum passes over a name; 8, because one finds nearly everything.
///
/// A name that needs more is made up, and stays as it is.
const MAX_PASSES: usize = 8;

/// Simplifies a name once; `None` if it does not become shorter.
fn pass(name: &str, drops_parameters: bool) -> Option<String> {
    let mut pieces = parse(without_hash(name))?;
    if drops_parameters {
        drop_parameters(&mut pieces);
    }
    let mut short = String::with_capacity(name.len());
    write_all(&pieces, &mut short);
    (short.len() < name.len() && !short.trim().is_empty()).then_some(short)
}

/// Drops the hash at the end of a Rust name: `::h0123456789abcdef`.
fn without_hash(name: &str) -> &str {
    let Some((path, hash)) = name.rsplit_once("::h") else { return name };
    let is_hash = hash.len() == 16 && hash.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_hash && !path.is_empty() { path } else { name }
}

/// Drops parameter lists, what is behind them, and the return type in front of the name.
///
/// A name that returns or takes its functions in another form, as `void (*f(int))(char)`, stays.
fn drop_parameters(pieces: &mut Vec<NamePiece<'_>>) {
    let is_pointer = |piece: &NamePiece<'_>| match piece {
        NamePiece::Group(Bracket::Round, lists) => {
            matches!(lists.first().and_then(|list| list.first()), Some(NamePiece::Text(text)) if text.starts_with(['*', '&']))
        }
        _ => false,
    };
    let is_decltype = |pair: &[NamePiece<'_>]| matches!(pair, [NamePiece::Text(text), NamePiece::Group(Bracket::Round, _)] if text.ends_with("decltype") || text.ends_with("decltype "));
    if pieces.iter().any(is_pointer) || pieces.windows(2).any(is_decltype) {
        return;
    }
    let is_parameters = |piece: &NamePiece<'_>| matches!(piece, NamePiece::Group(Bracket::Round, lists) if !is_anonymous(lists));
    let Some(first) = pieces.iter().position(is_parameters) else { return };
    // In Rust, a tuple at the start or behind a space is a type.
    let follows_name = match first.checked_sub(1).and_then(|before| pieces.get(before)) {
        Some(NamePiece::Text(text)) => !text.ends_with([' ', ':', '&', '*']),
        Some(NamePiece::Group(bracket, _)) => {
            matches!(bracket, Bracket::Angle | Bracket::Square | Bracket::Curly)
        }
        None => false,
    };
    if !follows_name {
        return;
    }
    let start = pieces[..first].iter().enumerate().rev().find_map(|(index, piece)| match piece {
        NamePiece::Text(text) => Some((index, return_type_end(text)?)),
        NamePiece::Group(..) => None,
    });
    let mut behind_parameters = false;
    pieces.retain_mut(|piece| {
        if is_parameters(piece) {
            behind_parameters = true;
            return false;
        }
        if let NamePiece::Text(text) = piece {
            if std::mem::take(&mut behind_parameters) {
                *text = without_qualifiers(text);
            }
            return !text.is_empty();
        }
        true
    });
    if let Some((index, end)) = start {
        pieces.drain(..index);
        if let Some(NamePiece::Text(text)) = pieces.first_mut() {
            *text = &text[end..];
        }
    }
}

/// The end of the return type in this text; what follows `operator` is the name.
fn return_type_end(text: &str) -> Option<usize> {
    let name = match text.find("operator") {
        Some(operator) => &text[..operator],
        None => text,
    };
    // Behind a closing bracket, as in `std::enable_if<...>::type f`.
    let end = name.rfind(' ')? + 1;
    let stars = name[end..].len() - name[end..].trim_start_matches(['*', '&']).len();
    Some(end + stars)
}

/// Drops what qualifies a member function, at the start of the text behind its parameters.
fn without_qualifiers(text: &str) -> &str {
    let mut rest = text;
    loop {
        let next = [" const", " volatile", " noexcept", " &&", " &", "&&", "&"]
            .iter()
            .find_map(|qualifier| rest.strip_prefix(qualifier));
        match next {
            Some(behind) if !behind.starts_with(|c: char| c.is_alphanumeric() || c == '_') => rest = behind,
            _ => return rest,
        }
    }
}

fn is_anonymous(lists: &[Vec<NamePiece<'_>>]) -> bool {
    let [list] = lists else { return false };
    matches!(list.as_slice(), [NamePiece::Text(text)] if *text == ANONYMOUS.0 || *text == ANONYMOUS.1)
}

fn write_all(pieces: &[NamePiece<'_>], output: &mut String) {
    let begin = output.len();
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            NamePiece::Text(text) => write_text(with_alias(text, output), output, begin),
            NamePiece::Group(bracket, lists) => {
                let is_last = index + 1 == pieces.len();
                write_group(*bracket, lists, output, begin, is_last);
            }
        }
    }
}

/// Writes the constructor or destructor of a class with an alias, as `std::string::string`.
///
/// Returns the text behind it.
fn with_alias<'n>(text: &'n str, output: &mut String) -> &'n str {
    for prefix in ["::", "::~"] {
        let Some(rest) = text.strip_prefix(prefix) else { continue };
        for (template, _, alias) in ALIASES {
            let class = template.rsplit("::").next().unwrap_or_default();
            if let Some(behind) = rest.strip_prefix(class)
                && !behind.starts_with(|c: char| c.is_alphanumeric() || c == '_')
                && output.ends_with(alias)
            {
                output.push_str(prefix);
                output.push_str(alias.rsplit("::").next().unwrap_or_default());
                return behind;
            }
        }
    }
    text
}

/// Writes text without inline namespaces and well-known paths.
fn write_text(text: &str, output: &mut String, begin: usize) {
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let is_start = !output[begin..].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$');
        if is_start
            && output.ends_with("::")
            && let Some(inner) = INLINE_NAMESPACES.iter().find_map(|name| rest.strip_prefix(name))
        {
            rest = inner;
            continue;
        }
        if is_start
            && !output.ends_with("::")
            && let Some((name, behind)) = rust_path(rest)
        {
            output.push_str(name);
            rest = behind;
            continue;
        }
        output.push(c);
        rest = &rest[c.len_utf8()..];
    }
}

/// Splits a well-known path off: its last part, and the text behind it.
fn rust_path(text: &str) -> Option<(&'static str, &str)> {
    let path = RUST_PATHS.iter().rev().find(|path| {
        text.strip_prefix(**path)
            .is_some_and(|behind| !behind.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })?;
    let name = path.rsplit("::").next()?;
    Some((name, &text[path.len()..]))
}

fn write_group(
    bracket: Bracket,
    lists: &[Vec<NamePiece<'_>>],
    output: &mut String,
    begin: usize,
    is_last: bool,
) {
    match bracket {
        Bracket::Angle => write_arguments(lists, output, begin, is_last),
        Bracket::Round if is_anonymous(lists) => {
            output.push('(');
            output.push_str(ANONYMOUS.1);
            output.push(')');
        }
        // The tag of the C++ library's version.
        Bracket::Square if tag_of(lists) == Some("abi:cxx11") => {}
        Bracket::Curly => write_curly(lists, output),
        _ => {
            let (open, close) = bracket.ends();
            output.push(open);
            write_lists(lists, output);
            output.push(close);
        }
    }
}

fn tag_of<'n>(lists: &[Vec<NamePiece<'n>>]) -> Option<&'n str> {
    match lists {
        [list] => match list.as_slice() {
            [NamePiece::Text(text)] => Some(text),
            _ => None,
        },
        _ => None,
    }
}

fn write_lists(lists: &[Vec<NamePiece<'_>>], output: &mut String) {
    for (index, list) in lists.iter().enumerate() {
        if index > 0 {
            output.push(',');
        }
        write_all(list, output);
    }
}

/// Writes `{lambda(int)#1}` as `{lambda#1}`, and `{{closure}}` as `{closure}`.
fn write_curly(lists: &[Vec<NamePiece<'_>>], output: &mut String) {
    if let [list] = lists {
        match list.as_slice() {
            [NamePiece::Group(Bracket::Curly, inner)] => return write_curly(inner, output),
            [NamePiece::Text("lambda"), NamePiece::Group(Bracket::Round, _), NamePiece::Text(number)] => {
                output.push_str("{lambda");
                output.push_str(number);
                output.push('}');
                return;
            }
            _ => {}
        }
    }
    output.push('{');
    write_lists(lists, output);
    output.push('}');
}

/// Writes template arguments; the template is at the end of the output.
fn write_arguments(lists: &[Vec<NamePiece<'_>>], output: &mut String, begin: usize, is_last: bool) {
    let mut arguments: Vec<String> = Vec::with_capacity(lists.len());
    for list in lists {
        let mut argument = String::new();
        write_all(list, &mut argument);
        arguments.push(argument);
    }
    // Empty packs leave empty arguments behind.
    arguments.retain(|argument| !argument.trim().is_empty());
    let template_start = path_start(&output[begin..]) + begin;
    let template = output[template_start..].to_owned();
    drop_defaults(&template, &mut arguments);
    if let [one] = arguments.as_slice()
        && let Some((_, _, alias)) =
            ALIASES.iter().find(|(name, of, _)| *name == template && *of == one.trim())
    {
        output.truncate(template_start);
        output.push_str(alias);
        return;
    }
    if let [pointer, container] = arguments.as_slice()
        && template == "__gnu_cxx::__normal_iterator"
    {
        output.truncate(template_start);
        output.push_str(container.trim());
        output.push_str(if pointer.contains(" const*") { "::const_iterator" } else { "::iterator" });
        return;
    }
    // Rust's `<Vec<u8>>::push`: the brackets of a type alone.
    if template.is_empty()
        && template_start == begin
        && !is_last
        && let [one] = arguments.as_slice()
        && is_plain_path(one)
    {
        output.push_str(one);
        return;
    }
    output.push('<');
    for (index, argument) in arguments.iter().enumerate() {
        if index > 0 {
            output.push(',');
        }
        output.push_str(if index == 0 { argument.trim_start() } else { argument });
    }
    // `> >` is from the time before C++11; behind an operator the space stays.
    let trimmed = output.trim_end();
    if trimmed.ends_with('>') && !trimmed.ends_with("operator>") && !trimmed.ends_with("->") {
        output.truncate(trimmed.len());
    }
    output.push('>');
}

/// True for a type that needs no brackets in front of `::`.
fn is_plain_path(text: &str) -> bool {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if !text[..at].ends_with('-') => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            c if c.is_alphanumeric() || matches!(c, '_' | ':') => {}
            _ => return false,
        }
    }
    !text.is_empty()
}

/// The start of the path at the end of a text.
fn path_start(text: &str) -> usize {
    let is_of_path = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '$' | '~');
    let path = text.trim_end_matches(is_of_path).len();
    // A path behind other template arguments, as in `A<int>::B`, is no template of a table.
    if text[..path].ends_with('>') { text.len() } else { path }
}

fn drop_defaults(template: &str, arguments: &mut Vec<String>) {
    let Some((_, first, defaults)) = DEFAULTS.iter().find(|(name, _, _)| *name == template) else { return };
    while arguments.len() > *first {
        let last = arguments.len() - 1;
        let Some(pattern) = defaults.get(last - first) else { return };
        let filled = |at: usize| arguments.get(at).map_or("", |argument| argument.trim());
        let default = pattern.replace("$0", filled(0)).replace("$1", filled(1));
        if !is_same(&arguments[last], &default) {
            return;
        }
        arguments.truncate(last);
    }
}

/// True for texts that differ in spaces alone.
fn is_same(one: &str, other: &str) -> bool {
    let letters = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
    letters(one) == letters(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorten_drops_what_readers_know() {
        for (name, short) in [
            ("main", "main"),
            (
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
                "std::vector<int>::push_back(int const&)",
            ),
            ("std::vector<int, Pool<int> >::size() const", "std::vector<int, Pool<int>>::size() const"),
            (
                "std::map<int, std::vector<S, std::allocator<S> >, std::less<int>, std::allocator<std::pair<int const, std::vector<S, std::allocator<S> > > > >::operator[](int const&)",
                "std::map<int, std::vector<S>>::operator[](int const&)",
            ),
            (
                "std::map<int, S, Greater, std::allocator<std::pair<int const, S> > >::clear()",
                "std::map<int, S, Greater>::clear()",
            ),
            (
                "std::unordered_map<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >, int, std::hash<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > >, std::equal_to<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > >, std::allocator<std::pair<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const, int> > >::clear()",
                "std::unordered_map<std::string, int>::clear()",
            ),
            ("std::set<A, std::less<A>, std::allocator<A> > f()", "std::set<A> f()"),
            (
                "std::__1::vector<int, std::__1::allocator<int>>::size() const",
                "std::vector<int>::size() const",
            ),
            (
                "std::unique_ptr<A, std::default_delete<A> >::~unique_ptr()",
                "std::unique_ptr<A>::~unique_ptr()",
            ),
            (
                "__gnu_cxx::__normal_iterator<A const*, std::vector<A, std::allocator<A> > > std::find<A>()",
                "std::vector<A>::const_iterator std::find<A>()",
            ),
            (
                "std::ostream& operator<< <std::char_traits<char> >(std::ostream&, char const*)",
                "std::ostream& operator<< <std::char_traits<char>>(std::ostream&, char const*)",
            ),
            (
                "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::basic_string(char const*, std::allocator<char> const&)",
                "std::string::string(char const*, std::allocator<char> const&)",
            ),
            (
                "std::basic_ofstream<char, std::char_traits<char> >::~basic_ofstream()",
                "std::ofstream::~ofstream()",
            ),
            ("Key[abi:cxx11](int)", "Key(int)"),
            ("(anonymous namespace)::load(char const*)", "(anon)::load(char const*)"),
            (
                "main::{lambda(int, char)#2}::operator()(int, char) const",
                "main::{lambda#2}::operator()(int, char) const",
            ),
            (
                "llvm::AnalysisManager<llvm::Module, >::clear()",
                "llvm::AnalysisManager<llvm::Module>::clear()",
            ),
            ("bool operator< <A>(A const&, A const&)", "bool operator< <A>(A const&, A const&)"),
            ("f<&A::operator> >(int)", "f<&A::operator> >(int)"),
            // Rust.
            (
                "<alloc::vec::Vec<T> as core::iter::traits::collect::Extend<T>>::extend",
                "<Vec<T> as Extend<T>>::extend",
            ),
            ("<alloc::vec::Vec<shop::Order>>::push", "Vec<shop::Order>::push"),
            ("alloc::vec::Vec<u8, alloc::alloc::Global>::reserve", "Vec<u8>::reserve"),
            ("core::ops::function::FnOnce::call_once{{vtable.shim}}", "FnOnce::call_once{vtable.shim}"),
            ("shop::main::{{closure}}::h0123456789abcdef", "shop::main::{closure}"),
            ("shop::run::{closure#0}", "shop::run::{closure#0}"),
            (
                "core::ptr::drop_in_place::<alloc::boxed::Box<dyn core::fmt::Debug>>",
                "core::ptr::drop_in_place::<Box<dyn Debug>>",
            ),
            ("<[u8]>::to_vec", "<[u8]>::to_vec"),
            // Not a name of this kind, or broken.
            ("a < b", "a < b"),
            ("f(", "f("),
            (">>>", ">>>"),
            ("", ""),
            ("std::vector<int, std::allocator<int>", "std::vector<int, std::allocator<int>"),
        ] {
            assert_eq!(shorten(name), short, "{name}");
        }
    }

    #[test]
    fn parameters_are_dropped_with_the_return_type() {
        for (name, short) in [
            ("load(int)", "load"),
            ("void std::sort<int*>(int*, int*)", "std::sort<int*>"),
            ("std::enable_if<true, int>::type f<A>(A)", "f<A>"),
            ("A::operator unsigned long() const", "A::operator unsigned long"),
            ("operator new(unsigned long)", "operator new"),
            ("operator new[](unsigned long)", "operator new[]"),
            ("A::operator()(int) const", "A::operator()"),
            ("std::vector<A, std::allocator<A> >::size() const", "std::vector<A>::size"),
            ("(anonymous namespace)::load(char const*)", "(anon)::load"),
            (
                "Foo::bar(int) const::{lambda(int)#1}::operator()(int) const",
                "Foo::bar::{lambda#1}::operator()",
            ),
            ("foo(int) [clone .cold]", "foo [clone .cold]"),
            ("void (*f(int))(char)", "void (*f(int))(char)"),
            ("decltype(a) f<A>(A)", "decltype(a) f<A>(A)"),
            ("char const* name(int)", "name"),
            ("A& A::operator=(A const&)", "A::operator="),
            ("core::ptr::drop_in_place::<(u8, u16)>", "core::ptr::drop_in_place::<(u8, u16)>"),
            ("<(A, B) as core::fmt::Debug>::fmt", "<(A, B) as Debug>::fmt"),
            ("vtable for A", "vtable for A"),
        ] {
            assert_eq!(shorten_without_parameters(name), short, "{name}");
        }
    }

    #[test]
    fn hostile_names_stay_as_they_are() {
        for name in ["<".repeat(60_000), "f<a".repeat(20_000), "(((".repeat(20_000), "x".repeat(1 << 20)] {
            assert_eq!(shorten(&name), name);
        }
        let deep = format!("f{}{}", "<a".repeat(100), ">".repeat(100));
        assert_eq!(shorten(&deep), deep);
        // Each pass finds one more of these.
        let nested = "std::".to_owned() + &"__1::".repeat(5_000) + "x";
        assert_eq!(shorten(&nested), "std::x");
    }
}

//! `cargo xtask header`: writes `cairn_capture.h` and `cairn_heap.h` from the Rust text that
//! defines the C API.
//!
//! A translator for the little Rust that a C border is made of: constants, `#[repr(C)]` structs,
//! functions with their doc comments. Whatever it does not know is an error that names the line, so
//! nothing is left out in silence. cbindgen does this for all of Rust; it brings 38 crates, two
//! minutes of compiling, into every run of the chores.

use std::fmt::Write as _;
use std::fs;

use crate::process::{Failure, Outcome, at, workspace_root};

/// A header, and what it declares, in its order.
struct Header {
    path: &'static str,
    guard: &'static str,
    /// Its first comment.
    title: &'static str,
    sources: &'static [&'static str],
}

const HEADERS: &[Header] = &[
    Header {
        path: "crates/cairn-c/include/cairn_capture.h",
        guard: "CAIRN_CAPTURE_H",
        title: r" * cairn_capture.h: call stacks from anywhere, in malloc and in signal handlers too.
 *
 *     cairn_stack_print(cairn_capture(), 2);
 *
 * docs/book/reference/c-api.md tells how to use it. This file is written by `cargo xtask header`; edit the sources of cairn-c instead.
",
        sources: &[
            "crates/cairn-c/src/capture.rs",
            "crates/cairn-c/src/encode.rs",
            "crates/cairn-c/src/recording.rs",
            "crates/cairn-c/src/unloading.rs",
            "crates/cairn-c/src/walk.rs",
        ],
    },
    Header {
        path: "crates/cairn-c/include/cairn_heap.h",
        guard: "CAIRN_HEAP_H",
        title: r" * cairn_heap.h: heap blocks that say who allocated them, in memory, on a server and on a device.
 *
 *     struct cairn_annotated_options options = { .type_size = sizeof options, .malloc_function = malloc, .free_function = free };
 *     cairn_annotated_configure(&options);
 *     void *block = cairn_annotated_malloc(100);
 *
 * docs/book/reference/annotate.md tells how to use it. This file is written by `cargo xtask header`; edit the sources of cairn-heap instead.
",
        sources: &["crates/cairn-heap/src/c.rs"],
    },
];

/// Exported without a declaration: the C library's own header has it.
const UNDECLARED: &[&str] = &["dlclose"];

/// Writes the headers; with `--check` it only says whether those that are there are right.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let check = match arguments {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Err(Failure::usage("usage: cargo xtask header [--check]")),
    };
    for header in HEADERS {
        let path = workspace_root().join(header.path);
        let wanted = header.generate()?;
        if !check {
            fs::write(&path, wanted).map_err(at(&path))?;
        } else if fs::read_to_string(&path).map_err(at(&path))? != wanted {
            let path = header.path;
            return Err(Failure::new(format!(
                "{path} is not what the sources say; run `cargo xtask header` and commit it"
            )));
        }
    }
    Ok(())
}

impl Header {
    fn generate(&self) -> Outcome<String> {
        let Self { guard, title, .. } = self;
        let mut header = format!("/*\n{title} */\n#ifndef {guard}\n#define {guard}\n{PREAMBLE}");
        for source in self.sources {
            let path = workspace_root().join(source);
            let text = fs::read_to_string(&path).map_err(at(&path))?;
            let part =
                translate(&text).map_err(|(line, what)| Failure::new(format!("{source}:{line}: {what}")))?;
            header.push_str(&part);
        }
        Ok(format!("{header}{POSTAMBLE}#endif /* {guard} */\n"))
    }
}

const PREAMBLE: &str = r#"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

"#;

const POSTAMBLE: &str = "#ifdef __cplusplus
} /* extern \"C\" */
#endif

";

/// The fault and its line.
type Trouble = (usize, String);

/// Returns the declarations of one source file.
fn translate(text: &str) -> Result<String, Trouble> {
    let mut header = String::new();
    let mut docs: Vec<&str> = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let located = |what: String| (number, what);
        if let Some(doc) = line.strip_prefix("///") {
            docs.push(doc.strip_prefix(' ').unwrap_or(doc));
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        if let Some(item) = line.strip_prefix("pub ") {
            let mut item = item.to_owned();
            // Up to the end of the item, or of its signature, or of its fields.
            let end = if item.starts_with("struct") { "}" } else { "{;" };
            while !item.ends_with(|c| end.contains(c)) {
                let Some((_, more)) = lines.next() else {
                    return Err(located("the item does not end".to_owned()));
                };
                item.push('\n');
                item.push_str(more.trim());
            }
            header.push_str(&declaration(&item, &docs).map_err(located)?);
        }
        docs.clear();
    }
    Ok(header)
}

fn declaration(item: &str, docs: &[&str]) -> Result<String, String> {
    if let Some(constant) = item.strip_prefix("const ") {
        return constant_declaration(constant, docs);
    }
    if let Some(alias) = item.strip_prefix("type ") {
        let (name, target) = split(alias.trim_end_matches(';'), " = ")?;
        return Ok(format!("{}typedef {};\n\n", comment(docs, ""), declarator(target, &snake_case(name))?));
    }
    if let Some(fields) = item.strip_prefix("struct ") {
        return struct_declaration(fields, docs);
    }
    let signature = item.strip_prefix("unsafe ").unwrap_or(item);
    match signature.strip_prefix("extern \"C\" fn ") {
        Some(signature) => function_declaration(signature.trim_end_matches('{').trim(), docs),
        None => Err(format!("no declaration is known for `pub {item}`")),
    }
}

fn constant_declaration(constant: &str, docs: &[&str]) -> Result<String, String> {
    let (name, rest) = split(constant.trim_end_matches(';'), ": ")?;
    let (kind, value) = split(rest, " = ")?;
    let value = match kind {
        "c_int" => format!("({value})"),
        "u32" | "CairnStackId" => format!("UINT32_C({})", value.replace('_', "")),
        _ => return Err(format!("no constant of type {kind} is known")),
    };
    Ok(format!("{}#define {name} {value}\n\n", comment(docs, "")))
}

fn struct_declaration(item: &str, docs: &[&str]) -> Result<String, String> {
    let (name, fields) = split(item, " {\n")?;
    let mut declared = format!("{}struct {} {{\n", comment(docs, ""), snake_case(name));
    let mut field_docs = Vec::new();
    for line in fields.lines().filter(|&line| line != "}") {
        if let Some(doc) = line.strip_prefix("/// ") {
            field_docs.push(doc);
            continue;
        }
        let field = line.strip_prefix("pub ").ok_or(format!("the field `{line}` is not public"))?;
        let (name, kind) = split(field.trim_end_matches(','), ": ")?;
        let field = declarator(kind, name)?;
        // Writing to a String cannot fail.
        let _ = writeln!(declared, "{}    {field};", comment(&field_docs, "    "));
        field_docs.clear();
    }
    Ok(declared + "};\n\n")
}

fn function_declaration(signature: &str, docs: &[&str]) -> Result<String, String> {
    let (name, rest) = split(signature, "(")?;
    let (arguments, result) = rest.rsplit_once(')').ok_or("no argument list")?;
    // The type of a callback has parentheses of its own.
    let (arguments, result) = match result.strip_prefix(" -> ") {
        Some(result) => (arguments, result),
        None => (arguments, "()"),
    };
    let mut declared = Vec::new();
    for argument in arguments.split('\n').map(|line| line.trim().trim_end_matches(',')) {
        for argument in split_outside_brackets(argument) {
            let (name, kind) = split(argument, ": ")?;
            declared.push(declarator(kind, name)?);
        }
    }
    let arguments = if declared.is_empty() { "void".to_owned() } else { declared.join(", ") };
    let docs: Vec<&str> = docs.iter().copied().take_while(|line| *line != "# Safety").collect();
    let function = declarator(result, &format!("{name}({arguments})"))?;
    Ok(if UNDECLARED.contains(&name) {
        String::new()
    } else {
        format!("{}{function};\n\n", comment(&docs, ""))
    })
}

/// Splits at the commas between arguments.
fn split_outside_brackets(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' | '<' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '>' if !text[..at].ends_with('-') => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// C's way to say that `name` is of the Rust type `kind`.
fn declarator(kind: &str, name: &str) -> Result<String, String> {
    if let Some(target) = kind.strip_prefix("*const ") {
        let pointed = declarator(target, "")?;
        return Ok(format!("const {}{}*{name}", pointed.trim_end(), space_before_star(&pointed)));
    }
    if let Some(target) = kind.strip_prefix("*mut ") {
        let pointed = declarator(target, "")?;
        return Ok(format!("{}{}*{name}", pointed.trim_end(), space_before_star(&pointed)));
    }
    if let Some((element, length)) =
        kind.strip_prefix('[').and_then(|inside| inside.strip_suffix(']')?.split_once("; "))
    {
        return declarator(element, &format!("{name}[{length}]"));
    }
    if let Some(function) =
        kind.strip_prefix("Option<unsafe extern \"C\" fn(").and_then(|function| function.strip_suffix('>'))
    {
        let (arguments, result) = split(function, ")")?;
        let arguments: Vec<String> = split_outside_brackets(arguments)
            .into_iter()
            .map(|argument| declarator(argument, ""))
            .collect::<Result<_, _>>()?;
        let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
        return declarator(result.strip_prefix(" -> ").unwrap_or("()"), &format!("(*{name})({arguments})"));
    }
    let word = match kind {
        "()" | "c_void" => "void".to_owned(),
        "c_char" => "char".to_owned(),
        "c_int" => "int".to_owned(),
        "u8" => "uint8_t".to_owned(),
        "u32" => "uint32_t".to_owned(),
        "u64" => "uint64_t".to_owned(),
        "i64" => "int64_t".to_owned(),
        "f64" => "double".to_owned(),
        "usize" => "size_t".to_owned(),
        "isize" => "ptrdiff_t".to_owned(),
        "CairnStackId" => snake_case(kind),
        _ if kind.starts_with("Cairn") => format!("struct {}", snake_case(kind)),
        _ => return Err(format!("no C type is known for {kind}")),
    };
    Ok(format!("{word} {name}").trim_end().to_owned())
}

fn space_before_star(pointed: &str) -> &'static str {
    if pointed.ends_with('*') { "" } else { " " }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(character.to_lowercase());
    }
    snake
}

/// Returns a C comment of the documentation, without trailing empty lines.
fn comment(docs: &[&str], indent: &str) -> String {
    let end = docs.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    match &docs[..end] {
        [] => String::new(),
        [line] => format!("{indent}/* {line} */\n"),
        lines => {
            let body: String =
                lines.iter().map(|line| format!("{indent} * {line}").trim_end().to_owned() + "\n").collect();
            format!("{indent}/*\n{body}{indent} */\n")
        }
    }
}

fn split<'a>(text: &'a str, at: &str) -> Result<(&'a str, &'a str), String> {
    text.split_once(at).ok_or_else(|| format!("`{at}` is missing in `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_agrees_with_the_sources() {
        run(&["--check".to_owned()]).unwrap();
    }

    #[test]
    fn header_translates_rust_to_c() {
        let cases = [
            (
                "/// One.\npub const CAIRN_A: u32 = 0xff_00;\n",
                "/* One. */\n#define CAIRN_A UINT32_C(0xff00)\n\n",
            ),
            ("pub const CAIRN_B: c_int = -1;\n", "#define CAIRN_B (-1)\n\n"),
            ("pub type CairnStackId = u32;\n", "typedef uint32_t cairn_stack_id;\n\n"),
            (
                "#[repr(C)]\npub struct CairnPart {\n    /// Size.\n    pub size: usize,\n    pub rest: [u32; 7],\n}\n",
                "struct cairn_part {\n    /* Size. */\n    size_t size;\n    uint32_t rest[7];\n};\n\n",
            ),
            (
                "/// Does.\n///\n/// # Safety\n///\n/// Rust's.\npub unsafe extern \"C\" fn cairn_do(a: *const CairnPart, b: *mut *mut c_void) -> isize {\n    body();\n}\n",
                "/* Does. */\nptrdiff_t cairn_do(const struct cairn_part *a, void **b);\n\n",
            ),
            (
                "pub extern \"C\" fn cairn_call(\n    f: Option<unsafe extern \"C\" fn(*mut c_void)>,\n    x: *mut c_void,\n) {\n}\n",
                "void cairn_call(void (*f)(void *), void *x);\n\n",
            ),
            (
                "#[repr(C)]\npub struct CairnF {\n    pub m: Option<unsafe extern \"C\" fn(*mut c_void, usize) -> *mut c_void>,\n    pub e: Option<unsafe extern \"C\" fn() -> usize>,\n}\n",
                "struct cairn_f {\n    void *(*m)(void *, size_t);\n    size_t (*e)(void);\n};\n\n",
            ),
            ("pub extern \"C\" fn cairn_name() -> *const c_char {\n}\n", "const char *cairn_name(void);\n\n"),
            ("pub unsafe extern \"C\" fn dlclose(handle: *mut c_void) -> c_int {\n}\n", ""),
            ("pub(crate) fn inner() {\n}\n", ""),
        ];
        for (rust, c) in cases {
            assert_eq!(translate(rust).unwrap(), c, "{rust}");
        }
    }

    #[test]
    fn header_reports_unknown_items_with_their_line() {
        let (line, what) = translate("\n\npub const A: f32 = 1.0;\n").unwrap_err();
        assert_eq!((line, what.as_str()), (3, "no constant of type f32 is known"));
        assert!(translate("pub fn rust_function() {\n}\n").is_err());
        assert!(translate("pub extern \"C\" fn cairn_x(a: String) {\n}\n").is_err());
    }
}

//! Checks that unsafe code states its contracts: a part of `cargo xtask unsafe-inventory`.
//!
//! Two comments that refer to each other prove nothing: a block that is sound "by contract", in a
//! function that states no contract. So every `unsafe fn` needs a `# Safety` section, and a SAFETY
//! comment that refers to a contract must name the promised fact, inside a function that states a
//! contract. "As in `name`" must name an item that the file uses.

use std::collections::BTreeSet;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::check_rooms::facts::SourceFile;

/// Phrases of comments that refer to the contract of the enclosing function.
const CONTRACT_PHRASES: &[&str] =
    &["contract", "caller promises", "caller guarantees", "caller's promise", "as promised"];
/// Whole comments that refer to a contract or to another comment and name no fact.
const EMPTY_REASONS: &[&str] =
    &["by contract", "by this function's contract", "by the contract", "by the caller's contract"];

/// Returns a line for each violation in a source file: `path:line: what is missing`.
pub(crate) fn violations(source: &SourceFile) -> syn::Result<Vec<String>> {
    let mut functions = Functions::default();
    functions.visit_file(&syn::parse_file(&source.text)?);
    let undocumented =
        functions.found.iter().filter(|function| function.is_unsafe && !function.states_contract).map(
            |function| (function.line, format!("`unsafe fn {}` has no `# Safety` section", function.name)),
        );
    let unfounded = safety_comments(&source.text)
        .filter_map(|(line, reason)| Some((line, functions.fault(line, &reason)?)));
    let mut faults: Vec<(usize, String)> = undocumented.chain(unfounded).collect();
    faults.sort();
    Ok(faults.into_iter().map(|(line, fault)| format!("{}:{line}: {fault}", source.path)).collect())
}

/// The functions of a file.
#[derive(Default)]
struct Functions {
    found: Vec<Function>,
    /// All identifiers in the file.
    names: BTreeSet<String>,
    /// True inside an `impl Trait for Type`, whose contracts the trait states.
    is_in_trait_impl: bool,
}

struct Function {
    name: String,
    line: usize,
    last_line: usize,
    is_unsafe: bool,
    states_contract: bool,
}

impl Functions {
    fn add(&mut self, attributes: &[syn::Attribute], signature: &syn::Signature, whole: &impl Spanned) {
        let name = signature.ident.to_string();
        let states_contract = self.is_in_trait_impl || attributes.iter().any(is_safety_heading);
        self.found.push(Function {
            name,
            line: signature.span().start().line,
            last_line: whole.span().end().line,
            is_unsafe: matches!(signature.safety, syn::Safety::Unsafe(_)),
            states_contract,
        });
    }

    /// The fault of a SAFETY comment, if it has one.
    fn fault(&self, line: usize, reason: &str) -> Option<String> {
        let lower = reason.to_lowercase();
        let lower = lower.trim_end_matches('.');
        if EMPTY_REASONS.contains(&lower) {
            return Some(format!("\"{reason}\" names no fact that makes the code sound"));
        }
        for start in ["as in `", "as for `"] {
            let Some((_, rest)) = lower.split_once(start) else { continue };
            let name = rest.split(['`', '(']).next().unwrap_or_default();
            let name = name.rsplit(['.', ':']).next().unwrap_or_default();
            if !self.names.iter().any(|known| known.to_lowercase() == name) {
                return Some(format!("the comment refers to `{name}`, which is not in this file"));
            }
        }
        if !CONTRACT_PHRASES.iter().any(|phrase| lower.contains(phrase)) {
            return None;
        }
        // The innermost function that contains the line starts last.
        let around = self.found.iter().filter(|function| function.line <= line && line <= function.last_line);
        let around = around.max_by_key(|function| function.line);
        match around {
            Some(function) if function.states_contract => None,
            Some(function) => Some(format!(
                "the comment refers to a contract, but `{}` has no `# Safety` section",
                function.name
            )),
            None => Some("the comment refers to a contract outside of any function".to_owned()),
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_ident(&mut self, name: &'ast proc_macro2::Ident) {
        self.names.insert(name.to_string());
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.attrs, &item.sig, item);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.attrs, &item.sig, item);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.add(&item.attrs, &item.sig, item);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let outer = std::mem::replace(&mut self.is_in_trait_impl, item.trait_.is_some());
        visit::visit_item_impl(self, item);
        self.is_in_trait_impl = outer;
    }
}

fn is_safety_heading(attribute: &syn::Attribute) -> bool {
    let syn::Meta::NameValue(value) = &attribute.meta else { return false };
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &value.value else { return false };
    attribute.path().is_ident("doc") && text.value().lines().any(|line| line.trim() == "# Safety")
}

/// The SAFETY comments of a file: line number, and text without the marks.
fn safety_comments(text: &str) -> impl Iterator<Item = (usize, String)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let starts = (0..lines.len()).filter_map({
        let lines = lines.clone();
        move |index| Some((index, lines[index].strip_prefix("// SAFETY:")?.trim().to_owned()))
    });
    starts.map(move |(index, first)| {
        let further = lines[index + 1..]
            .iter()
            .map_while(|line| line.strip_prefix("// ").filter(|line| !line.starts_with("SAFETY:")));
        let reason = further.fold(first, |reason, line| reason + " " + line);
        (index + 1, reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let source = SourceFile { path: "a.rs".to_owned(), is_root: false, text: text.to_owned() };
        violations(&source).unwrap()
    }

    #[test]
    fn unsafe_fn_without_contract_is_a_fault() {
        let text = "unsafe fn f() {}\n/// Does it.\n///\n/// # Safety\n///\n/// - Once.\nunsafe fn g() {}\n";
        assert_eq!(faults(text), ["a.rs:1: `unsafe fn f` has no `# Safety` section"]);
    }

    #[test]
    fn contracts_of_trait_functions_belong_to_the_trait() {
        let text = "unsafe trait T {\n/// # Safety\n///\n/// - Once.\nunsafe fn f(); }\n\
                    unsafe impl T for u8 { unsafe fn f() {} }\n";
        assert_eq!(faults(text), [""; 0]);
    }

    #[test]
    fn comments_that_refer_to_a_missing_contract_are_faults() {
        let text = "fn f() {\n    // SAFETY: the caller promises a pointer,\n    // which is valid.\n    unsafe { g() };\n}\n";
        assert_eq!(
            faults(text),
            ["a.rs:2: the comment refers to a contract, but `f` has no `# Safety` section"]
        );
        let stated = text.replace("fn f", "/// # Safety\n///\n/// - Valid.\nunsafe fn f");
        assert_eq!(faults(&stated), [""; 0]);
    }

    #[test]
    fn comments_without_a_fact_are_faults() {
        let text = "/// # Safety\n///\n/// - Valid.\nunsafe fn f() {\n    // SAFETY: by contract.\n    unsafe { g() };\n}\n";
        assert_eq!(faults(text), ["a.rs:5: \"by contract.\" names no fact that makes the code sound"]);
    }

    #[test]
    fn comments_that_refer_to_an_unknown_function_are_faults() {
        let text = "fn f() {\n    // SAFETY: as in `h`.\n    unsafe { g() };\n}\n";
        assert_eq!(faults(text), ["a.rs:2: the comment refers to `h`, which is not in this file"]);
        assert_eq!(faults(&text.replace("`h`", "`f`")), [""; 0]);
    }
}

//! `cargo xtask unsafe-inventory`: counts the unsafe code of every crate that ships it.
//!
//! The counts live in `docs/book/reference/unsafe.md`. CI compares them with the sources, so that
//! new unsafe code appears in the diff of a page that reviewers read, and not only in the middle of
//! a function. Sources are parsed with `syn`; bodies of macros are token streams to it, so an
//! `unsafe` keyword in one of them is counted in a column of its own. Tests and examples are not
//! counted.
//!
//! Both forms of the command also check that unsafe code states its contracts
//! ([`unsafe_contracts`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use syn::visit::{self, Visit};

use crate::check_rooms::facts::{self, Crate};
use crate::process::{Failure, Outcome, at, workspace_root};
use crate::unsafe_contracts;

/// The page with the table, relative to the workspace.
const PAGE: &str = "docs/book/reference/unsafe.md";

const HEAD: &str = "\
# Unsafe code, crate by crate

`cargo xtask unsafe-inventory` writes this page from the sources; CI fails when the two differ. A crate without a
row has `#![forbid(unsafe_code)]`, or no unsafe code yet. Tests and examples are not counted.

Each block has a `// SAFETY:` reason; clippy checks that. `in macros` counts the keyword inside macro definitions
and calls, where the kind is not known.

| crate | files | blocks | functions | impls | foreign blocks | assembly | in macros |
|---|---:|---:|---:|---:|---:|---:|---:|
";

/// Writes the page; with `--check` only compares it with the sources.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let check = match arguments {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Err(Failure::usage("usage: cargo xtask unsafe-inventory [--check]")),
    };
    let crates = facts::gather()?;
    check_contracts(&crates)?;
    let page = page(&crates)?;
    let path = workspace_root().join(PAGE);
    if !check {
        return fs::write(&path, page).map_err(at(&path));
    }
    let present = fs::read_to_string(&path).map_err(at(&path))?;
    let differing: Vec<&str> = page.lines().filter(|line| !present.lines().any(|old| old == *line)).collect();
    if present == page {
        println!("{PAGE} agrees with the sources");
        return Ok(());
    }
    Err(Failure::new(format!(
        "{PAGE} differs from the sources, which say:\n{}\nReview the unsafe code that changed, then run \
         `cargo xtask unsafe-inventory` and commit the page",
        differing.join("\n")
    )))
}

/// Fails with a line for each contract that unsafe code lacks.
fn check_contracts(crates: &[Crate]) -> Outcome {
    let mut violations = Vec::new();
    for found in crates {
        for source in &found.sources {
            let found = unsafe_contracts::violations(source)
                .map_err(|error| Failure::new(format!("{}: {error}", source.path)))?;
            violations.extend(found);
        }
    }
    if violations.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{}\nState each contract in a `# Safety` section, and in each SAFETY comment the fact that makes the code sound",
        violations.join("\n")
    )))
}

/// The unsafe code of one crate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    files: usize,
    blocks: usize,
    functions: usize,
    impls: usize,
    foreign_blocks: usize,
    assembly: usize,
    in_macros: usize,
}

impl Counts {
    fn add(&mut self, file: Self) {
        self.files += usize::from(file != Self::default());
        self.blocks += file.blocks;
        self.functions += file.functions;
        self.impls += file.impls;
        self.foreign_blocks += file.foreign_blocks;
        self.assembly += file.assembly;
        self.in_macros += file.in_macros;
    }

    fn of(text: &str) -> syn::Result<Self> {
        let mut counts = Self::default();
        counts.visit_file(&syn::parse_file(text)?);
        Ok(counts)
    }
}

impl<'ast> Visit<'ast> for Counts {
    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.blocks += 1;
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.functions += usize::from(matches!(signature.safety, syn::Safety::Unsafe(_)));
        visit::visit_signature(self, signature);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.impls += usize::from(item.unsafety.is_some());
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.impls += usize::from(item.unsafety.is_some());
        visit::visit_item_trait(self, item);
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast syn::ItemForeignMod) {
        self.foreign_blocks += 1;
        visit::visit_item_foreign_mod(self, item);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        let name = called.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        self.assembly += usize::from(name.ends_with("asm"));
        self.in_macros += unsafe_keywords(called.tokens.clone());
        visit::visit_macro(self, called);
    }
}

fn unsafe_keywords(tokens: proc_macro2::TokenStream) -> usize {
    let count = |token| match token {
        proc_macro2::TokenTree::Group(group) => unsafe_keywords(group.stream()),
        proc_macro2::TokenTree::Ident(word) => usize::from(word == "unsafe"),
        _ => 0,
    };
    tokens.into_iter().map(count).sum()
}

fn page(crates: &[Crate]) -> Outcome<String> {
    let mut rows = BTreeMap::new();
    for found in crates {
        let mut sum = Counts::default();
        for source in &found.sources {
            let counts = Counts::of(&source.text)
                .map_err(|error| Failure::new(format!("{}: {error}", source.path)))?;
            sum.add(counts);
        }
        rows.insert(&found.name, sum);
    }
    let mut page = HEAD.to_owned();
    for (name, sum) in rows.iter().filter(|(_, sum)| **sum != Counts::default()) {
        let Counts { files, blocks, functions, impls, foreign_blocks, assembly, in_macros } = sum;
        let _ = writeln!(
            page,
            "| `{name}` | {files} | {blocks} | {functions} | {impls} | {foreign_blocks} | {assembly} | {in_macros} |"
        );
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_inventory_counts_every_kind() {
        let text = r#"
            unsafe extern "C" { fn outer(); }
            unsafe trait Contract {}
            unsafe impl Contract for u8 {}
            unsafe fn raw() { unsafe { outer() } core::arch::asm!("nop") }
            macro_rules! load { ($at:expr) => { unsafe { *$at } } }
            fn safe() { let _ = "unsafe"; /* unsafe */ }
        "#;
        let expected = Counts {
            files: 0,
            blocks: 1,
            functions: 1,
            impls: 2,
            foreign_blocks: 1,
            assembly: 1,
            in_macros: 1,
        };
        assert_eq!(Counts::of(text).unwrap(), expected);
        assert_eq!(Counts::of("fn safe() {}").unwrap(), Counts::default());
    }

    #[test]
    fn unsafe_inventory_names_only_crates_with_unsafe_code() {
        let page = page(&facts::gather().unwrap()).unwrap();
        assert!(page.contains("| `cairn-recorder` |"), "{page}");
        assert!(!page.contains("cairn-format"), "{page}");
    }
}

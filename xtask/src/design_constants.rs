//! Compares the constants that design pages state with the sources.
//!
//! A page of `docs/design` lists them in a table: `| constant | value | crate |`. The value is
//! evaluated from the constant's expression, which may name other constants of its crate. A
//! constant that the sources define twice needs equal values.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Lit};

use crate::process::{Failure, Outcome, at};

const PAGES: &str = "docs/design";
const HEAD: &str = "| constant | value | crate |";

/// A row of a table.
#[derive(Debug, PartialEq, Eq)]
struct Stated {
    line: usize,
    name: String,
    value: i128,
    package: String,
}

/// Reads the tables of constants in a page.
fn stated(page: &str) -> Result<Vec<Stated>, String> {
    let mut rows = Vec::new();
    let mut inside = false;
    for (index, text) in page.lines().enumerate() {
        let line = index + 1;
        if text == HEAD {
            inside = true;
            continue;
        }
        inside &= text.starts_with('|');
        if !inside || text.starts_with("|---") {
            continue;
        }
        let cells: Vec<&str> = text.trim_matches('|').split('|').map(str::trim).collect();
        let [name, value, package] = cells[..] else {
            return Err(format!("line {line}: {} cells in place of 3", cells.len()));
        };
        let value = value.replace(',', "").parse();
        let value = value.map_err(|_| format!("line {line}: the value is no whole number"))?;
        let bare = |cell: &str| cell.trim_matches('`').to_owned();
        rows.push(Stated { line, name: bare(name), value, package: bare(package) });
    }
    Ok(rows)
}

/// All constants of a crate by name; several when modules use the same name.
#[derive(Default)]
struct Constants(BTreeMap<String, Vec<Expr>>);

impl<'ast> Visit<'ast> for Constants {
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.0.entry(item.ident.to_string()).or_default().push((*item.expr).clone());
        visit::visit_item_const(self, item);
    }
}

impl Constants {
    fn parse(sources: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut found = Self::default();
        for source in sources {
            found.visit_file(&syn::parse_file(&source).map_err(|error| error.to_string())?);
        }
        Ok(found)
    }

    /// Returns the value of a constant.
    fn value(&self, name: &str) -> Result<i128, String> {
        let all = self.0.get(name).ok_or("the crate has no such constant")?;
        let mut values: Vec<i128> =
            all.iter().map(|expr| self.evaluate(expr, 0)).collect::<Result<_, _>>()?;
        values.dedup();
        match values[..] {
            [value] => Ok(value),
            _ => Err(format!("the crate has several constants of this name: {values:?}")),
        }
    }

    fn evaluate(&self, expr: &Expr, depth: usize) -> Result<i128, String> {
        const DEEPEST: usize = 16;
        let again = |expr: &Expr| self.evaluate(expr, depth + 1);
        let failed = || "the constant is not made of whole numbers".to_owned();
        match expr {
            _ if depth > DEEPEST => Err(failed()),
            Expr::Lit(literal) => match &literal.lit {
                Lit::Int(number) => number.base10_parse().map_err(|_| failed()),
                _ => Err(failed()),
            },
            Expr::Paren(inner) => again(&inner.expr),
            Expr::Group(inner) => again(&inner.expr),
            Expr::Cast(inner) => again(&inner.expr),
            Expr::Binary(both) => {
                let (left, right) = (again(&both.left)?, again(&both.right)?);
                let shift = || u32::try_from(right).map_err(|_| failed());
                match both.op {
                    BinOp::Add(_) => left.checked_add(right),
                    BinOp::Sub(_) => left.checked_sub(right),
                    BinOp::Mul(_) => left.checked_mul(right),
                    BinOp::Div(_) => left.checked_div(right),
                    BinOp::Shl(_) => left.checked_shl(shift()?),
                    _ => None,
                }
                .ok_or_else(failed)
            }
            Expr::Path(path) => {
                let name = path.path.segments.last().ok_or_else(failed)?.ident.to_string();
                let first = self.0.get(&name).and_then(|all| all.first()).ok_or_else(failed)?;
                again(first)
            }
            _ => Err(failed()),
        }
    }
}

/// Returns the text of every Rust file below a directory.
fn sources(directory: &Path) -> Outcome<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(directory).map_err(at(directory))? {
        let path: PathBuf = entry.map_err(at(directory))?.path();
        if path.is_dir() {
            texts.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            texts.push(fs::read_to_string(&path).map_err(at(&path))?);
        }
    }
    Ok(texts)
}

/// Returns everything that design pages state and the sources do not.
pub(crate) fn complaints(root: &Path) -> Outcome<Vec<String>> {
    let mut found = Vec::new();
    let mut crates: BTreeMap<String, Constants> = BTreeMap::new();
    let directory = root.join(PAGES);
    let mut pages: Vec<PathBuf> = fs::read_dir(&directory)
        .map_err(at(&directory))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(at(&directory))?;
    pages.sort();
    for path in pages {
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let page = fs::read_to_string(&path).map_err(at(&path))?;
        if !page.lines().take(4).any(is_date) {
            found.push(format!("{shown}: no line `Date: YYYY-MM-DD` below the title"));
        }
        for row in stated(&page).map_err(|error| Failure::new(format!("{shown}: {error}")))? {
            if !crates.contains_key(&row.package) {
                let texts = sources(&root.join("crates").join(&row.package).join("src"))?;
                let constants = Constants::parse(texts)
                    .map_err(|error| Failure::new(format!("{}: {error}", row.package)))?;
                crates.insert(row.package.clone(), constants);
            }
            match crates[&row.package].value(&row.name) {
                Ok(value) if value == row.value => {}
                Ok(value) => {
                    found.push(format!("{shown}:{}: `{}` is {value} in {}", row.line, row.name, row.package))
                }
                Err(why) => {
                    found.push(format!("{shown}:{}: `{}`, {}: {why}", row.line, row.name, row.package))
                }
            }
        }
    }
    Ok(found)
}

/// True for the line that dates a page.
fn is_date(line: &str) -> bool {
    let Some(date) = line.strip_prefix("Date: ") else { return false };
    let parts: Vec<&str> = date.trim_end_matches('.').splitn(3, '-').collect();
    let lengths = [4, 2, 2];
    parts.len() == 3
        && parts.iter().zip(lengths).all(|(part, length)| {
            part.len() >= length && part.bytes().take(length).all(|byte| byte.is_ascii_digit())
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::workspace_root;

    // Failed with: docs/design/0005-order-without-a-clock.md: `FILTER_ENTRIES` is 4096 in
    // cairn-recorder (the page said 1,024).
    #[test]
    fn design_pages_state_the_constants_of_the_sources() {
        let found = complaints(&workspace_root()).unwrap();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn constants_are_evaluated_through_others_of_the_crate() {
        let source = "const A: usize = 1 << 12; mod m { const B: u64 = (super::A as u64 - 96) * 2; }\n\
                      fn f() { const C: u32 = B / 4; } const D: u8 = b'x'; const E: u32 = E;\n\
                      const F: u8 = 1; mod n { const F: u8 = 2; } mod o { const A: u8 = 4_096; }";
        let constants = Constants::parse([source.to_owned()]).unwrap();
        for (name, expected) in [("A", Ok(4096)), ("B", Ok(8000)), ("C", Ok(2000))] {
            assert_eq!(constants.value(name), expected, "{name}");
        }
        for (name, words) in
            [("D", "whole numbers"), ("E", "whole numbers"), ("F", "[1, 2]"), ("G", "no such")]
        {
            let error = constants.value(name).unwrap_err();
            assert!(error.contains(words), "{name}: {error}");
        }
    }

    #[test]
    fn tables_of_constants_are_read_with_their_lines() {
        let page = "# 1\nDate: 2026-11-22\n| constant | value | crate |\n|---|---:|---|\n| `A` | 4,096 | `c` |\n\n| x | y | z |\n";
        let row = Stated { line: 5, name: "A".to_owned(), value: 4096, package: "c".to_owned() };
        assert_eq!(stated(page), Ok(vec![row]));
        assert!(
            is_date("Date: 2026-11-22")
                && is_date("Date: 2026-11-22, checked against the code")
                && !is_date("Date: soon")
        );
        let wrong = page.replace("4,096", "many");
        assert_eq!(stated(&wrong), Err("line 5: the value is no whole number".to_owned()));
        let wrong = page.replace(" | `c` |", " |");
        assert_eq!(stated(&wrong), Err("line 5: 2 cells in place of 3".to_owned()));
    }
}

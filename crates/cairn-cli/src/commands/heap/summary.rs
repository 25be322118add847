//! What is said at the end: the totals of a recording, its five first places each, and what to try next.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

use cairn_analysis::format::StatedAddress;
use cairn_analysis::heap_summary::{Amount, HeapSummary, StackAmounts};
use cairn_analysis::recording::{ModuleId, PcId, Recording, StackId};
use cairn_analysis::symbols::FileSymbols;

use super::live::size;
use crate::output::printable;

/// So many places are told of each kind.
const PLACES: usize = 5;
/// So many functions of a stack are told: the one that allocated, and its callers.
const FUNCTIONS: usize = 4;

/// What of a stack is told, and what the stacks are sorted by.
type AmountOf = fn(&StackAmounts) -> Amount;
type Key = fn(&StackAmounts) -> u64;

/// Writes the summary of `recording`, which is in the file at `path`.
pub(super) fn write(out: &mut impl Write, recording: &Recording, path: &Path) -> io::Result<()> {
    let summary = HeapSummary::of(recording).map_err(io::Error::other)?;
    let mut names = Names { recording, files: HashMap::new(), functions: HashMap::new() };
    let HeapSummary { allocated, leaked, temporary, .. } = &summary;
    writeln!(out)?;
    writeln!(out, "  allocated  {} in {}", size(allocated.bytes), blocks(allocated.blocks))?;
    writeln!(
        out,
        "  peak       {} at {:.3} s of {:.3} s",
        size(summary.peak_bytes),
        seconds(summary.peak_nanos),
        seconds(summary.end_nanos)
    )?;
    writeln!(out, "  leaked     {} in {}", size(leaked.bytes), blocks(leaked.blocks))?;
    let share = 100.0 * temporary.blocks as f64 / allocated.blocks.max(1) as f64;
    writeln!(
        out,
        "  temporary  {} ({share:.0} % of all: freed before anything else was allocated)",
        blocks(temporary.blocks)
    )?;
    if summary.unmatched_frees > 0 {
        writeln!(out, "  freed      {} that are older than the recording", blocks(summary.unmatched_frees))?;
    }
    for finding in recording.findings() {
        // That a program was killed is no news to who ran it.
        if !matches!(finding, cairn_analysis::recording::Finding::NoEnd) {
            writeln!(out, "  note: {}", printable(&finding.to_string()))?;
        }
    }
    let kinds: [(&str, AmountOf, Key); 3] = [
        ("Most memory at the peak", |stack| stack.at_peak, |stack| stack.at_peak.bytes),
        ("Most memory leaked", |stack| stack.leaked, |stack| stack.leaked.bytes),
        ("Most temporary blocks", |stack| stack.temporary, |stack| stack.temporary.blocks),
    ];
    for (title, amount, key) in kinds {
        let places = summary.most(PLACES, key);
        if places.is_empty() {
            continue;
        }
        writeln!(out, "\n{title}:")?;
        for (stack, amounts) in places {
            let Amount { blocks: count, bytes } = amount(&amounts);
            let place = names.place(stack);
            writeln!(out, "  {:>10}  {:>10} x  {}", size(bytes), count, printable(&place))?;
        }
    }
    writeln!(out, "\nNext: cairn report {0}    cairn flame {0}", printable(&path.display().to_string()))
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn blocks(count: u64) -> String {
    if count == 1 { "1 block".to_owned() } else { format!("{count} blocks") }
}

/// Names of functions, looked up once each.
struct Names<'a> {
    recording: &'a Recording,
    files: HashMap<ModuleId, Option<FileSymbols>>,
    functions: HashMap<PcId, Vec<String>>,
}

impl Names<'_> {
    /// The functions that a stack is known by, innermost first.
    fn place(&mut self, stack: StackId) -> String {
        if stack == StackId::LOST {
            return "(stack lost)".to_owned();
        }
        let pcs: Vec<PcId> = self.recording.stacks().pc_ids(stack).collect();
        let mut all = pcs.iter().flat_map(|pc| self.functions_of(*pc)).collect::<Vec<_>>();
        // What stands between the program and malloc says nothing.
        let inner = all.iter().take_while(|name| is_allocator(name)).count();
        if inner < all.len() {
            all.drain(..inner);
        }
        let is_cut = all.len() > FUNCTIONS;
        all.truncate(FUNCTIONS);
        if is_cut {
            all.push("...".to_owned());
        }
        if all.is_empty() { "(no stack)".to_owned() } else { all.join(" < ") }
    }

    fn functions_of(&mut self, pc: PcId) -> Vec<String> {
        if let Some(known) = self.functions.get(&pc) {
            return known.clone();
        }
        let found = self.look_up(pc);
        self.functions.insert(pc, found.clone());
        found
    }

    fn look_up(&mut self, pc: PcId) -> Vec<String> {
        use cairn_analysis::recording::Place;
        let Some(place) = self.recording.frame(pc).and_then(|frame| frame.lookup_place()) else {
            return Vec::new();
        };
        let (id, offset) = match place {
            Place::Module(id, offset) => (id, offset),
            Place::Absolute(address) => return vec![format!("{:#x}", address.value())],
        };
        let Some(module) = self.recording.module(id) else { return vec!["??".to_owned()] };
        let path = module.path_text().into_owned();
        let base = path.rsplit('/').next().unwrap_or(&path).to_owned();
        let stated = module.start.value().wrapping_add(offset.value()).wrapping_sub(module.bias);
        let file = self.files.entry(id).or_insert_with(|| FileSymbols::open(Path::new(&path)).ok());
        let locations =
            file.as_ref().map(|file| file.resolve(StatedAddress::new(stated))).unwrap_or_default();
        let names: Vec<String> = locations
            .into_iter()
            .filter_map(|location| {
                let function = short(&location.function?);
                let file = location.file.as_deref().and_then(|file| file.rsplit('/').next());
                Some(match (file, location.line) {
                    (Some(file), Some(line)) => format!("{function} ({file}:{line})"),
                    _ => function,
                })
            })
            .collect();
        if names.is_empty() { vec![format!("{base}+{:#x}", offset.value())] } else { names }
    }
}

/// The name without what stands between angle brackets and parentheses, where it is a long one.
fn short(name: &str) -> String {
    const LONG: usize = 60;
    if name.len() <= LONG {
        return name.to_owned();
    }
    let mut depth = 0_u32;
    let mut kept = String::new();
    for c in name.chars() {
        match c {
            '<' | '(' => {
                if depth == 0 {
                    kept.push(c);
                }
                depth += 1;
            }
            '>' | ')' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    kept.push_str("..");
                    kept.push(c);
                }
            }
            _ if depth == 0 => kept.push(c),
            _ => {}
        }
    }
    // Operators have brackets in their names; better too long than wrong.
    if depth == 0 { kept } else { name.to_owned() }
}

fn is_allocator(name: &str) -> bool {
    const WRAPPERS: [&str; 8] = [
        "operator new",
        "std::__new_allocator",
        "__gnu_cxx::new_allocator",
        "std::allocator",
        "std::allocator_traits",
        "alloc::alloc",
        "__rust_alloc",
        "__rdl_alloc",
    ];
    WRAPPERS.iter().any(|wrapper| name.starts_with(wrapper))
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn long_names_lose_their_arguments() {
        assert_eq!(short("main"), "main");
        assert_eq!(short("std::vector<int>::push_back(int&&)"), "std::vector<int>::push_back(int&&)");
        let long =
            "std::_Rb_tree<int, std::pair<int const, std::string>, std::less<int> >::_M_get_node(int, char)";
        assert_eq!(short(long), "std::_Rb_tree<..>::_M_get_node(..)");
        let operator = format!("{} operator<", "x".repeat(70));
        assert_eq!(short(&operator), operator);
    }
}

//! Cuts names to a width.

use super::is_anonymous;
use super::pieces::{Bracket, NamePiece, parse};
use crate::demangle::MAX_DEMANGLED_BYTES;

/// Cuts a name to a number of columns; `width` returns the columns of a text.
///
/// Parameters go first, then template arguments from the second on, the inner ones first, then all
/// of them, then the middle of the name.
///
/// ```
/// use cairn_symbols::shorten::fit;
///
/// let fit = |columns| fit("std::map<Key, std::vector<Order>>::insert(Key const&)", columns, |text| text.chars().count());
/// assert_eq!(fit(60), "std::map<Key, std::vector<Order>>::insert(Key const&)");
/// assert_eq!(fit(45), "std::map<Key, std::vector<Order>>::insert(…)");
/// assert_eq!(fit(30), "std::map<Key, …>::insert(…)");
/// assert_eq!(fit(24), "std::map<…>::insert(…)");
/// assert_eq!(fit(12), "std…nsert(…)");
/// ```
#[must_use]
pub fn fit(name: &str, columns: usize, width: impl Fn(&str) -> usize) -> String {
    let fits = |text: &str| width(text) <= columns;
    if fits(name) {
        return name.to_owned();
    }
    let mut shortest = name.to_owned();
    if let Some(pieces) = (name.len() <= MAX_DEMANGLED_BYTES).then(|| parse(name)).flatten() {
        let depth = depth_of(&pieces).min(MOST_CUTS);
        let firsts = (0..=depth).rev().map(|level| Cut { firsts_from: level, none_from: usize::MAX });
        let nones = (0..depth).rev().map(|level| Cut { firsts_from: 0, none_from: level });
        for cut in firsts.chain(nones) {
            shortest.clear();
            cut.write(&pieces, 0, &mut shortest);
            if fits(&shortest) {
                return shortest;
            }
        }
    }
    without_middle(&shortest, columns, width)
}

/// Maximum levels of template arguments that are cut one by one; 16, and deeper ones together.
const MOST_CUTS: usize = 16;

/// How much of the template arguments is written, by their depth; no parameters at all.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// At this depth and deeper, the first argument alone.
    firsts_from: usize,
    /// At this depth and deeper, nothing.
    none_from: usize,
}

impl Cut {
    fn write(self, pieces: &[NamePiece<'_>], depth: usize, output: &mut String) {
        for piece in pieces {
            match piece {
                NamePiece::Text(text) => output.push_str(text),
                NamePiece::Group(Bracket::Round, lists) if depth == 0 && !is_anonymous(lists) => {
                    output.push_str(if lists.iter().all(Vec::is_empty) { "()" } else { "(…)" });
                }
                NamePiece::Group(bracket, lists) => {
                    let (open, close) = bracket.ends();
                    let is_cut = *bracket == Bracket::Angle && !output.is_empty();
                    output.push(open);
                    if is_cut && depth >= self.none_from {
                        output.push('…');
                    } else if let [first, _, ..] = lists.as_slice()
                        && is_cut
                        && depth >= self.firsts_from
                    {
                        self.write(first, depth + 1, output);
                        output.push_str(", …");
                    } else {
                        for (index, list) in lists.iter().enumerate() {
                            output.push_str(if index > 0 { "," } else { "" });
                            self.write(list, depth + 1, output);
                        }
                    }
                    output.push(close);
                }
            }
        }
    }
}

/// The nesting of a name's brackets.
fn depth_of(pieces: &[NamePiece<'_>]) -> usize {
    let depth = |piece: &NamePiece<'_>| match piece {
        NamePiece::Text(_) => 0,
        NamePiece::Group(_, lists) => 1 + lists.iter().map(|list| depth_of(list)).max().unwrap_or(0),
    };
    pieces.iter().map(depth).max().unwrap_or(0)
}

/// Replaces the middle of a text by `…`. The end of a name says more than its start.
fn without_middle(text: &str, columns: usize, width: impl Fn(&str) -> usize) -> String {
    let room = columns.saturating_sub(1);
    let take = |characters: &mut dyn Iterator<Item = char>, room: usize| {
        let (mut taken, mut left) = (Vec::new(), room);
        for character in characters {
            let columns = width(character.encode_utf8(&mut [0; 4]));
            if columns > left {
                break;
            }
            left -= columns;
            taken.push(character);
        }
        taken
    };
    let front = take(&mut text.chars(), room / 3);
    let mut back = take(&mut text.chars().rev(), room - room / 3);
    back.reverse();
    front.into_iter().chain(['…']).chain(back).collect()
}

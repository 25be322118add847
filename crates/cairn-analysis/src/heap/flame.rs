//! Flame graphs: one SVG file that explains itself in any browser, and the folded stacks that other
//! tools draw from.
//!
//! The file needs nothing else: the layout is in it, so that it is right where no script runs (in a
//! viewer, in a mail); the script in it fits it to the window, zooms and searches. Widths are
//! memory or calls, heights are calls deep, `main` at the bottom. Horizontal places are parts of
//! the whole, vertical ones are pixels: a row is as high as its text, whatever the width.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use cairn_format::changes_its_surroundings;

use super::Cost;
use super::questions::Questions;
use super::tree::{Direction, Tree, TreeNode};
use crate::attribution::colours::{OWNER_COLOURS, colour_of, owner_classes};
use crate::attribution::{Owner, OwnerKind};

/// The texts around the picture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlameOptions {
    /// The heading.
    pub title: String,
    /// A line below it.
    pub subtitle: String,
}

/// Width of the drawing in pixels where no script fits it to the window.
const WIDTH: f64 = 1200.0;
/// The part of the width that frames have, and what is left beside them, in percent.
const INNER_PERCENT: f64 = 98.4;
const SIDE_PERCENT: f64 = 0.8;
const ROW: f64 = 18.0;
/// Room for the heading, and for the legend below it.
const TOP: f64 = 76.0;
const LEGEND: f64 = 62.0;
const BOTTOM: f64 = 28.0;
const SIDE: f64 = 10.0;
/// Height of the line that marks folded frames: visible, and below the text.
const FOLD: f64 = 3.0;
/// Width of one character in the requested font; the frame clips wider ones.
const CHARACTER: f64 = 7.2;

/// Characters of the heading, and of the line below it, that fit beside the buttons.
const TITLE_CHARACTERS: usize = 105;
const SUBTITLE_CHARACTERS: usize = 145;

/// A drawn frame.
struct Flame<'a> {
    node: &'a TreeNode,
    /// From 0 to 1.
    start: f64,
    share: f64,
    /// Index of the node that it is in; its own for the root.
    parent: usize,
    /// Index of its own node.
    index: usize,
}

/// The class of each node's colour, and the words of the legend.
struct Colours {
    of_nodes: Vec<&'static str>,
    legend: Vec<(&'static str, String)>,
}

impl Questions<'_> {
    /// The tree, which must be one [from `main`](super::Direction::FromMain), as an SVG file.
    #[must_use]
    pub fn flame_svg(&self, tree: &Tree, options: &FlameOptions) -> String {
        let flames = layout(tree);
        let levels = flames.iter().map(|flame| flame.node.level).max().unwrap_or(0);
        let height = TOP + ROW * (levels as f64 + 1.0) + BOTTOM;
        let mut svg = String::with_capacity(flames.len() * 300 + 16_000);
        self.write_svg(&mut svg, tree, &flames, height, options).expect("text is written to memory");
        svg
    }

    fn write_svg(
        &self,
        svg: &mut String,
        tree: &Tree,
        flames: &[Flame<'_>],
        height: f64,
        options: &FlameOptions,
    ) -> std::fmt::Result {
        writeln!(
            svg,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             data-whole=\"{}\" data-unit=\"{}\">",
            tree.nodes[0].amount.value,
            if tree.cost.is_bytes() { "bytes" } else { "blocks" },
        )?;
        let title = one_line(&options.title);
        let (light, dark) = (owner_classes(false), owner_classes(true));
        writeln!(
            svg,
            "<title>{}</title>\n<style>{STYLE}{light}@media (prefers-color-scheme: dark) {{\n{DARK_STYLE}{dark}}}\n</style>",
            Escaped(&title)
        )?;
        writeln!(svg, "<rect class=\"page\" width=\"100%\" height=\"100%\"/>")?;
        // The tooltip has the whole text.
        let whole = Escaped(&title);
        writeln!(
            svg,
            "<text class=\"title\" x=\"{SIDE}\" y=\"24\"><title>{whole}</title>{}</text>",
            Escaped(&cut(&title, TITLE_CHARACTERS))
        )?;
        let folded = folded_text(tree.folded_frames());
        let room = SUBTITLE_CHARACTERS.saturating_sub(folded.chars().count());
        let subtitle = cut(&one_line(&options.subtitle), room) + &folded;
        writeln!(svg, "<text class=\"sub\" x=\"{SIDE}\" y=\"42\">{}</text>", Escaped(&subtitle))?;
        for (id, y, text) in [("search", 24, "search"), ("reset", 42, "")] {
            writeln!(
                svg,
                "<text class=\"button\" id=\"{id}\" x=\"100%\" dx=\"-{SIDE}\" y=\"{y}\">{text}</text>"
            )?;
        }
        let colours = self.colours(tree, flames);
        write_legend(svg, &colours.legend, tree.folded_frames() > 0)?;
        writeln!(
            svg,
            "<svg id=\"flames\" x=\"{SIDE_PERCENT}%\" width=\"{INNER_PERCENT}%\" height=\"{height}\">"
        )?;
        for flame in flames {
            self.write_flame(svg, tree, flame, &colours, height)?;
        }
        let below = height - 8.0;
        writeln!(svg, "</svg>\n<text class=\"sub\" id=\"description\" x=\"{SIDE}\" y=\"{below}\"></text>")?;
        writeln!(svg, "<script><![CDATA[{SCRIPT}]]></script>\n</svg>")
    }

    /// Chooses a colour for the owner of each node.
    ///
    /// The largest libraries have their own, by what goes through their outermost frames.
    fn colours(&self, tree: &Tree, flames: &[Flame<'_>]) -> Colours {
        let owner = |node: &TreeNode| node.line.map(|line| self.names.owner(line));
        let owners: Vec<Option<Owner>> = tree.nodes.iter().map(owner).collect();
        let mut libraries = BTreeMap::<&str, f64>::new();
        for flame in flames {
            let own = owners[flame.index].as_ref();
            if let Some(owner) = own.filter(|owner| owner.kind == OwnerKind::Library)
                && owners[flame.parent].as_ref() != own
            {
                *libraries.entry(&owner.name).or_default() += flame.share;
            }
        }
        let mut largest: Vec<(&str, f64)> = libraries.into_iter().collect();
        largest.sort_by(|a, b| b.1.total_cmp(&a.1));
        let largest: Vec<&str> = largest.into_iter().map(|(name, _)| name).collect();
        let places: Vec<Option<usize>> =
            owners.iter().map(|owner| owner.as_ref().map(|owner| colour_of(owner, &largest))).collect();
        let is_used = |place: usize| flames.iter().any(|flame| places[flame.index] == Some(place));
        let words = |place: usize| {
            let interpreter = || owners.iter().flatten().find(|owner| owner.kind == OwnerKind::Interpreter);
            match OWNER_COLOURS[place].class {
                "mine" => "your code".to_owned(),
                "library" => "other libraries".to_owned(),
                "standard" => "standard library, runtime, allocator".to_owned(),
                "interpreter" => interpreter().map_or_else(String::new, ToString::to_string),
                "unknown" => "without a file".to_owned(),
                _ => largest.get(place - 1).map_or_else(String::new, ToString::to_string),
            }
        };
        let legend = (0..OWNER_COLOURS.len())
            .filter(|&place| is_used(place))
            .map(|place| (OWNER_COLOURS[place].class, words(place)))
            .collect();
        let class = |place: &Option<usize>| place.map_or("all", |place| OWNER_COLOURS[place].class);
        Colours { of_nodes: places.iter().map(class).collect(), legend }
    }

    fn write_flame(
        &self,
        svg: &mut String,
        tree: &Tree,
        flame: &Flame<'_>,
        colours: &Colours,
        height: f64,
    ) -> std::fmt::Result {
        let node = flame.node;
        let (name, module) = match node.line {
            Some(line) => (self.names.function_of(line).name.as_ref(), self.names.module_name(line)),
            None => ("all", ""),
        };
        let place = node.line.and_then(|line| {
            let line = self.names.source_line(line);
            Some(match line.line {
                Some(number) => format!("{}:{number} ", line.file.as_deref()?),
                None => format!("{} ", line.file.as_deref()?),
            })
        });
        let width = flame.share * WIDTH * INNER_PERCENT / 100.0;
        let y = height - BOTTOM - ROW * (node.level as f64 + 1.0);
        let amount = describe(tree.cost, node.amount.value, node.amount.blocks);
        let in_module = if module.is_empty() { String::new() } else { format!("in {module} ") };
        write!(
            svg,
            "<svg x=\"{:.4}%\" y=\"{y}\" width=\"{:.4}%\" height=\"{ROW}\" data-x=\"{:.9}\" data-w=\"{:.9}\" data-l=\"{}\" \
             data-v=\"{}\"><title>{}\n{}{}\n{amount}, {:.2} %{}</title>",
            flame.start * 100.0,
            flame.share * 100.0,
            flame.start,
            flame.share,
            node.level,
            node.amount.value,
            Escaped(name),
            Escaped(place.as_deref().unwrap_or("")),
            Escaped(&in_module),
            flame.share * 100.0,
            folds_text(node)
        )?;
        let class = colours.of_nodes[flame.index];
        write!(svg, "<rect class=\"{class}\" width=\"100%\" height=\"{ROW}\"/>")?;
        if node.folded_outside > 0 {
            // On the side of the caller.
            let y = if tree.direction == Direction::FromMain { ROW - FOLD } else { 0.0 };
            write!(svg, "<rect class=\"fold\" y=\"{y}\" width=\"100%\" height=\"{FOLD}\"/>")?;
        }
        let text = cut(name, ((width - 6.0) / CHARACTER).max(0.0) as usize);
        writeln!(svg, "<text x=\"3\" y=\"13\">{}</text></svg>", Escaped(&text))
    }

    /// Lists the stacks of all allocations, a line each, in the folded format of other tools.
    ///
    /// A line has the functions from `main` inwards with `;` between them, a space, and the cost.
    /// Stacks of the same functions are one line.
    #[must_use]
    pub fn folded(&mut self, cost: Cost) -> String {
        let costs: Vec<_> = self
            .askers
            .iter()
            .map(|asker| (*asker, cost.of(self.sums(asker.stack)).value))
            .filter(|&(_, value)| value > 0)
            .collect();
        self.names.find_stacks(costs.iter().map(|(asker, _)| asker.stack));
        let mut lines = BTreeMap::<String, u64>::new();
        for (asker, value) in costs {
            let mut frames: Vec<Cow<'_, str>> = self
                .names
                .outwards(asker.end)
                .map(|position| folded_name(&self.names.function_of(self.names.at_position(position)).name))
                .collect();
            frames.reverse();
            *lines.entry(frames.join(";")).or_default() += value;
        }
        let mut text = String::new();
        for (stack, value) in lines {
            let _ = writeln!(text, "{stack} {value}");
        }
        text
    }
}

/// A name without what has a meaning in folded stacks. Rust's arrays, as `[u8; 4]`, have it.
///
/// ```
/// use cairn_analysis::heap::folded_name;
///
/// assert_eq!(folded_name("map<[u8; 4]>\n"), "map<[u8: 4]> ");
/// ```
#[must_use]
pub fn folded_name(name: &str) -> Cow<'_, str> {
    if !name.contains(|c: char| c == ';' || c.is_control()) {
        return Cow::Borrowed(name);
    }
    let plain = |c: char| match c {
        ';' => ':',
        c if c.is_control() => ' ',
        c => c,
    };
    Cow::Owned(name.chars().map(plain).collect())
}

/// ` · 27 frames are folded`, for the line below the heading; nothing for none.
fn folded_text(frames: usize) -> String {
    match frames {
        0 => String::new(),
        1 => " · 1 frame is folded: --internals draws it".to_owned(),
        frames => format!(" · {} frames are folded: --internals draws them", grouped(frames)),
    }
}

/// A number with a comma between groups of three digits.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The folded frames around a call, for its tooltip.
fn folds_text(node: &TreeNode) -> String {
    let frames = |frames: usize| if frames == 1 { "1 frame".to_owned() } else { format!("{frames} frames") };
    let outside = (node.folded_outside > 0)
        .then(|| format!("\n{} between it and its caller: folded", frames(node.folded_outside)));
    let inside = (node.folded_inside > 0)
        .then(|| format!("\n{} between it and its allocations: folded", frames(node.folded_inside)));
    outside.into_iter().chain(inside).collect()
}

/// A square and a word for each colour.
fn write_legend(svg: &mut String, legend: &[(&'static str, String)], has_folds: bool) -> std::fmt::Result {
    let mut x = SIDE;
    let folds = has_folds.then(|| ("fold", "folded frames".to_owned()));
    for (class, words) in legend.iter().chain(&folds) {
        let (top, text) = (LEGEND - 10.0, x + 15.0);
        let (top, height) = if *class == "fold" { (top + 4.0, FOLD) } else { (top, 11.0) };
        writeln!(svg, "<rect class=\"{class}\" x=\"{x}\" y=\"{top}\" width=\"11\" height=\"{height}\"/>")?;
        writeln!(svg, "<text class=\"sub\" x=\"{text}\" y=\"{LEGEND}\">{}</text>", Escaped(words))?;
        x = text + CHARACTER * words.chars().count() as f64 + 2.0 * SIDE;
    }
    Ok(())
}

/// Each node behind the siblings that cost more, the root first.
fn layout(tree: &Tree) -> Vec<Flame<'_>> {
    let Some(root) = tree.nodes.first() else { return Vec::new() };
    let whole = root.amount;
    let mut starts = vec![0.0; tree.nodes.len()];
    let mut flames = vec![Flame { node: root, start: 0.0, share: 1.0, parent: 0, index: 0 }];
    // Parents come before their children.
    for (index, node) in tree.nodes.iter().enumerate() {
        let mut start: f64 = starts[index];
        for &child in &node.children {
            let child_node = &tree.nodes[child];
            let share = child_node.amount.share_of(whole);
            starts[child] = start;
            if share > 0.0 {
                flames.push(Flame { node: child_node, start, share, parent: index, index: child });
            }
            start += share;
        }
    }
    flames
}

fn describe(cost: Cost, value: u64, blocks: u64) -> String {
    if cost.is_bytes() { format!("{value} bytes in {blocks} blocks") } else { format!("{value} allocations") }
}

/// A text in one line: a command may hold a whole script. Runs of blanks and newlines are one
/// blank.
fn one_line(text: &str) -> String {
    text.split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The first characters of a name, as many as fit.
fn cut(name: &str, characters: usize) -> String {
    match characters {
        0..=2 => String::new(),
        _ if name.chars().count() <= characters => name.to_owned(),
        _ => name.chars().take(characters - 1).chain(['…']).collect(),
    }
}

/// Text from strangers as XML has it. Control characters have no form there at all.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for c in self.0.chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                // Its escape has nothing that means something to XML.
                c if changes_its_surroundings(c) => write!(f, "{}", c.escape_unicode())?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

const STYLE: &str = include_str!("flame.css");
const DARK_STYLE: &str = include_str!("flame_dark.css");
const SCRIPT: &str = include_str!("flame.js");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_ends_an_element() {
        let name = "std::vector<int>::operator&&('\"')\u{1b}[31m</text>";
        // Failed with: the character itself, which turns the text of the page around.
        assert_eq!(Escaped("a\u{202e}b\u{1b}").to_string(), r"a\u{202e}b\u{1b}");
        let escaped = Escaped(name).to_string();
        assert!(!escaped.contains(['<', '>', '"', '\'', '\u{1b}']), "{escaped}");
        assert!(!SCRIPT.contains("]]>"), "it would end the script's section");
    }

    #[test]
    fn flame_heading_is_one_line_before_the_buttons() {
        let title = format!("sh -c 'set -e\n\tfor i in 1 2\r\ndo\n{}'", "work; ".repeat(100));
        let line = one_line(&title);
        assert!(line.starts_with("sh -c 'set -e for i in 1 2 do work; work;"), "{line}");
        assert!(!line.contains(char::is_control), "{line}");
        let shown = cut(&line, TITLE_CHARACTERS);
        assert_eq!(shown.chars().count(), TITLE_CHARACTERS);
        assert!(shown.ends_with('…'), "{shown}");
        assert_eq!(one_line("\n \u{1b}\n"), "");
    }

    #[test]
    fn folded_frames_are_counted_in_words() {
        assert_eq!(folded_text(0), "");
        assert_eq!(folded_text(1), " · 1 frame is folded: --internals draws it");
        assert_eq!(folded_text(1_234_567), " · 1,234,567 frames are folded: --internals draws them");
        assert_eq!(grouped(999), "999");
    }

    #[test]
    fn flame_names_are_cut_to_their_room() {
        assert_eq!(cut("function", 2), "");
        assert_eq!(cut("function", 5), "func…");
        assert_eq!(cut("fünction", 8), "fünction");
    }
}

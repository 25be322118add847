//! Flame graphs: one SVG file that explains itself in any browser, and the folded stacks that other
//! tools draw from.
//!
//! The file needs nothing else: the layout is in it, so that it is right where no script runs (in a
//! viewer, in a mail); the script in it zooms and searches. Widths are memory or calls, heights are
//! calls deep, `main` at the bottom.

use std::borrow::Cow;
use std::fmt::Write;

use cairn_format::changes_its_surroundings;

use super::Cost;
use super::questions::Questions;
use super::tree::{Tree, TreeNode};

/// The texts around the picture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlameOptions {
    /// The heading.
    pub title: String,
    /// A line below it.
    pub subtitle: String,
}

/// Width of the drawing; browsers scale it to the window.
const WIDTH: f64 = 1200.0;
const ROW: f64 = 17.0;
const TOP: f64 = 58.0;
const BOTTOM: f64 = 28.0;
const SIDE: f64 = 10.0;
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
             <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"100%\" viewBox=\"0 0 {WIDTH} {height}\" \
             data-whole=\"{}\" data-unit=\"{}\">",
            tree.nodes[0].amount.value,
            if tree.cost.is_bytes() { "bytes" } else { "blocks" },
        )?;
        let title = one_line(&options.title);
        writeln!(svg, "<title>{}</title>\n<style>{STYLE}</style>", Escaped(&title))?;
        writeln!(svg, "<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>")?;
        // The tooltip has the whole text.
        let whole = Escaped(&title);
        writeln!(
            svg,
            "<text class=\"title\" x=\"{SIDE}\" y=\"24\"><title>{whole}</title>{}</text>",
            Escaped(&cut(&title, TITLE_CHARACTERS))
        )?;
        let subtitle = cut(&one_line(&options.subtitle), SUBTITLE_CHARACTERS);
        writeln!(svg, "<text class=\"sub\" x=\"{SIDE}\" y=\"42\">{}</text>", Escaped(&subtitle))?;
        let right = WIDTH - SIDE;
        writeln!(svg, "<text class=\"button\" id=\"search\" x=\"{right}\" y=\"24\">search</text>")?;
        writeln!(svg, "<text class=\"button\" id=\"reset\" x=\"{right}\" y=\"42\"></text>")?;
        writeln!(svg, "<g id=\"flames\">")?;
        for flame in flames {
            self.write_flame(svg, tree, flame, height)?;
        }
        let below = height - 8.0;
        writeln!(svg, "</g>\n<text class=\"sub\" id=\"description\" x=\"{SIDE}\" y=\"{below}\"></text>")?;
        writeln!(svg, "<script><![CDATA[{SCRIPT}]]></script>\n</svg>")
    }

    fn write_flame(&self, svg: &mut String, tree: &Tree, flame: &Flame<'_>, height: f64) -> std::fmt::Result {
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
        let x = SIDE + flame.start * (WIDTH - 2.0 * SIDE);
        let width = flame.share * (WIDTH - 2.0 * SIDE);
        let y = height - BOTTOM - ROW * (node.level as f64 + 1.0);
        let amount = describe(tree.cost, node.amount.value, node.amount.blocks);
        let in_module = if module.is_empty() { String::new() } else { format!("in {module} ") };
        write!(
            svg,
            "<g data-x=\"{:.9}\" data-w=\"{:.9}\" data-l=\"{}\" data-v=\"{}\"><title>{}\n{}{}\n{amount}, {:.2} %</title>",
            flame.start,
            flame.share,
            node.level,
            node.amount.value,
            Escaped(name),
            Escaped(place.as_deref().unwrap_or("")),
            Escaped(&in_module),
            flame.share * 100.0
        )?;
        write!(
            svg,
            "<rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{:.0}\" fill=\"{}\"/>",
            ROW - 1.0,
            colour(name, module)
        )?;
        let text = cut(name, ((width - 6.0) / CHARACTER).max(0.0) as usize);
        writeln!(svg, "<text x=\"{:.2}\" y=\"{:.1}\">{}</text></g>", x + 3.0, y + 12.0, Escaped(&text))
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
        let mut lines = std::collections::BTreeMap::<String, u64>::new();
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

/// Each node behind the siblings that cost more, the root first.
fn layout(tree: &Tree) -> Vec<Flame<'_>> {
    let Some(root) = tree.nodes.first() else { return Vec::new() };
    let whole = root.amount;
    let mut starts = vec![0.0; tree.nodes.len()];
    let mut flames = vec![Flame { node: root, start: 0.0, share: 1.0 }];
    // Parents come before their children.
    for (index, node) in tree.nodes.iter().enumerate() {
        let mut start: f64 = starts[index];
        for &child in &node.children {
            let child_node = &tree.nodes[child];
            let share = child_node.amount.share_of(whole);
            starts[child] = start;
            if share > 0.0 {
                flames.push(Flame { node: child_node, start, share });
            }
            start += share;
        }
    }
    flames
}

fn describe(cost: Cost, value: u64, blocks: u64) -> String {
    if cost.is_bytes() { format!("{value} bytes in {blocks} blocks") } else { format!("{value} allocations") }
}

/// One hue for each module, one shade for each function, the same in every graph.
fn colour(name: &str, module: &str) -> String {
    let hash = |text: &str| {
        text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    };
    if module.is_empty() {
        return "hsl(0,0%,82%)".to_owned();
    }
    let hue = hash(module) % 360;
    let shade = hash(name);
    format!("hsl({hue},{}%,{}%)", 55 + shade % 25, 66 + (shade >> 8) % 14)
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
    fn flame_names_are_cut_to_their_room() {
        assert_eq!(cut("function", 2), "");
        assert_eq!(cut("function", 5), "func…");
        assert_eq!(cut("fünction", 8), "fünction");
    }
}

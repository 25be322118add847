//! Finds the comments of a Rust file and their sentences, without parsing Rust.

/// A comment: lines with the same marker, one below the other.
#[derive(Debug, Default)]
pub(super) struct Comment {
    /// True for `///`, which documents an item.
    pub(super) is_item_doc: bool,
    pub(super) lines: Vec<Line>,
    pub(super) sentences: Vec<Sentence>,
}

/// One line of a comment.
#[derive(Debug)]
pub(super) struct Line {
    /// Counted from 1.
    pub(super) number: usize,
    /// Width of the whole line, from the left margin.
    pub(super) columns: usize,
    /// False of tables, code and addresses of the web, which cannot be broken.
    pub(super) is_prose: bool,
}

/// One sentence, without the markers of its lines.
#[derive(Debug)]
pub(super) struct Sentence {
    /// Line of its first word, counted from 1.
    pub(super) line: usize,
    pub(super) text: String,
}

/// Finds all comments of a file.
pub(super) fn of(text: &str) -> Vec<Comment> {
    let mut comments: Vec<Comment> = Vec::new();
    let mut previous = None;
    let mut builder = Builder::default();
    for (number, line) in (1..).zip(text.lines()) {
        let found = split(line);
        if let Some((marker, content, is_alone)) = found {
            if previous != Some(marker) || !is_alone {
                comments.extend(builder.finish());
            }
            builder.comment.is_item_doc = marker == "///";
            builder.add(number, line.chars().count(), content);
        }
        previous = found.filter(|(.., is_alone)| *is_alone).map(|(marker, ..)| marker);
        if previous.is_none() {
            comments.extend(builder.finish());
        }
    }
    comments.extend(builder.finish());
    comments
}

/// Splits a line into the marker and the content of its comment, and whether nothing is before it.
fn split(line: &str) -> Option<(&'static str, &str, bool)> {
    let (before, comment) = line.split_once("//").map(|(before, _)| (before, &line[before.len()..]))?;
    let is_alone = before.trim().is_empty();
    // Behind code only `; // ` and the like are comments; anything else may be inside of a string.
    if !is_alone && (!before.ends_with([' ', '\t']) || before.matches('"').count() % 2 == 1) {
        return None;
    }
    let marker = ["///", "//!"].into_iter().find(|marker| comment.starts_with(marker)).unwrap_or("//");
    Some((marker, &comment[marker.len()..], is_alone))
}

/// Removes the targets of links: `[a](b)` becomes `[a]`.
pub(super) fn without_link_targets(text: &str) -> String {
    let mut rest = text;
    let mut shown = String::new();
    while let Some((before, link)) = rest.split_once("](") {
        shown.push_str(before);
        shown.push(']');
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    shown + rest
}

#[derive(Debug, Default)]
struct Builder {
    comment: Comment,
    is_code: bool,
    is_sentence_open: bool,
}

impl Builder {
    fn add(&mut self, number: usize, columns: usize, content: &str) {
        let content = content.trim();
        let is_fence = content.starts_with("```");
        self.is_code ^= is_fence;
        let is_code = self.is_code || is_fence;
        let is_table = content.starts_with('|');
        let is_address = content.contains("://");
        self.comment.lines.push(Line { number, columns, is_prose: !is_code && !is_table && !is_address });
        let is_list_item = ["- ", "* ", "1. "].iter().any(|start| content.starts_with(start));
        if content.is_empty() || is_code || is_table || content.starts_with('#') || is_list_item {
            self.is_sentence_open = false;
        }
        if is_code || is_table || content.starts_with('#') {
            return;
        }
        for word in content.trim_start_matches(['-', '*', ' ']).split_whitespace() {
            match self.comment.sentences.last_mut() {
                Some(last) if self.is_sentence_open => {
                    last.text.push(' ');
                    last.text.push_str(word);
                }
                _ => self.comment.sentences.push(Sentence { line: number, text: word.to_owned() }),
            }
            self.is_sentence_open = !word.trim_end_matches(['"', ')', '*', '`']).ends_with(['.', '?', '!']);
        }
    }

    /// Returns the comment, if there is one, and begins the next.
    fn finish(&mut self) -> Option<Comment> {
        let done = std::mem::take(self).comment;
        (!done.lines.is_empty()).then_some(done)
    }
}

//! Lays the screen out as lines of styled text; nothing here knows a terminal.

use cairn_analysis::attribution::OwnerKind;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::app::{App, Input};
use super::table::{By, ChosenStack, Column, Row};
use crate::commands::folding_text::folded_text;
use crate::commands::heap_text::{bytes, count, curve, duration, list_name, signed_bytes, stretched};
use crate::output::printable;

/// Smaller terminals get a message instead.
pub(super) const LEAST_COLUMNS: usize = 40;
pub(super) const LEAST_LINES: usize = 10;

/// The style of a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    Plain,
    Strong,
    Dim,
    /// A heading, or the chosen row.
    Reversed,
    Grown,
    Shrunk,
    /// The name of a library's function.
    Library,
}

/// A line: parts that look alike.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct ScreenLine(pub(super) Vec<(String, Look)>);

impl ScreenLine {
    fn of(text: impl Into<String>, look: Look) -> Self {
        let mut line = Self::default();
        line.add(text, look);
        line
    }

    fn add(&mut self, text: impl Into<String>, look: Look) {
        self.0.push((printable(&text.into()).into_owned(), look));
    }

    fn width(&self) -> usize {
        self.0.iter().map(|(text, _)| text.width()).sum()
    }

    /// The texts alone.
    pub(super) fn text(&self) -> String {
        self.0.iter().map(|(text, _)| text.as_str()).collect()
    }

    /// Cuts the line to this many columns.
    fn fit(mut self, columns: usize) -> Self {
        let mut left = columns;
        for (text, _) in &mut self.0 {
            *text = cut(text, left);
            left -= text.width().min(left);
        }
        self
    }

    /// And fills it up.
    fn fill(mut self, columns: usize, look: Look) -> Self {
        self = self.fit(columns);
        let missing = columns.saturating_sub(self.width());
        self.add(" ".repeat(missing), look);
        self
    }
}

/// Returns as much of the text as fits into this many columns.
fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut left = columns.saturating_sub(1);
    let mut fitting = String::new();
    for character in text.chars() {
        let width = character.width().unwrap_or(0);
        if width > left {
            break;
        }
        left -= width;
        fitting.push(character);
    }
    if columns > 0 {
        fitting.push('…');
    }
    fitting
}

/// All lines of a screen of this size.
pub(super) fn screen(app: &App, columns: usize, lines: usize) -> Vec<ScreenLine> {
    if columns < LEAST_COLUMNS || lines < LEAST_LINES {
        let wanted = format!("cairn top needs {LEAST_COLUMNS} columns and {LEAST_LINES} lines");
        let words = [wanted.as_str(), "make the terminal larger, or press q"];
        return words
            .iter()
            .take(lines)
            .map(|text| ScreenLine::of(*text, Look::Plain).fit(columns))
            .collect();
    }
    let mut all = head(app, columns);
    if let Some(values) = app.live_over_time() {
        let width = columns - 5;
        let text = curve(&stretched(&values, width), 1).pop().unwrap_or_default();
        let mut line = ScreenLine::of("live ", Look::Dim);
        line.add(text, Look::Plain);
        all.push(line.fit(columns));
    }
    let room = lines.saturating_sub(all.len() + 1);
    let body = if app.is_help {
        help()
    } else if app.is_detail {
        detail(app, room)
    } else {
        table(app, columns, columns, room)
    };
    all.extend(body.into_iter().take(room).map(|line| line.fit(columns)));
    all.resize(lines - 1, ScreenLine::default());
    all.push(foot(app, columns));
    all
}

/// The same as text: the head, and this many rows. Names are cut only where `is_terminal`.
pub(super) fn plain(app: &App, columns: usize, rows: usize, is_terminal: bool) -> Vec<String> {
    let columns = columns.max(LEAST_COLUMNS);
    let most = if is_terminal { columns } else { usize::MAX };
    let mut all = head(app, columns);
    all.extend(table(app, columns, most, rows.saturating_add(1)));
    all.iter().map(|line| line.clone().fit(most).text().trim_end().to_owned()).collect()
}

fn head(app: &App, columns: usize) -> Vec<ScreenLine> {
    let mut first = ScreenLine::of(app.title(), Look::Strong);
    let state = app.state_text();
    let room = columns.saturating_sub(state.width() + 1);
    first = first.fill(room, Look::Plain);
    first.add(" ", Look::Plain);
    first.add(state, Look::Dim);
    let mut all = vec![first.fit(columns)];
    // Facts fill as many lines as they need.
    let mut line = ScreenLine::default();
    for (name, value) in app.facts(columns < 60) {
        let part = name.width() + 1 + value.width();
        if !line.0.is_empty() && line.width() + 3 + part > columns {
            all.push(std::mem::take(&mut line).fit(columns));
        }
        if !line.0.is_empty() {
            line.add("   ", Look::Plain);
        }
        line.add(format!("{name} "), Look::Dim);
        line.add(value, Look::Strong);
    }
    if !line.0.is_empty() {
        all.push(line.fit(columns));
    }
    all
}

/// Columns of numbers: cost, heading, width, and minimum width of the screen that shows them.
const NUMBERS: [(Column, &str, usize, usize); 6] = [
    (Column::Live, "LIVE", 10, 0),
    (Column::Growth, "GROWTH", 11, 0),
    (Column::Since, "SINCE ZERO", 11, 84),
    (Column::Rate, "ALLOC/S", 10, 64),
    (Column::Total, "TOTAL", 10, 104),
    (Column::Temporary, "TEMPORARY", 12, 120),
];

/// The table in a width that decides which numbers are shown; lines may have `most` columns.
fn table(app: &App, columns: usize, most: usize, room: usize) -> Vec<ScreenLine> {
    let shown = NUMBERS.iter().filter(|(_, _, _, least)| columns >= *least);
    let taken: usize = shown.clone().map(|(_, _, width, _)| width + 1).sum();
    let name_columns = most.saturating_sub(taken + 1);
    let mut heading = String::new();
    for (column, title, width, _) in shown.clone() {
        let sign = if *column == app.wish.column { sign(app) } else { "" };
        heading.push_str(&format!("{:>width$} ", format!("{sign}{title}")));
    }
    let sign = if app.wish.column == Column::Name { sign(app) } else { "" };
    heading.push_str(&format!(" {sign}{}", app.wish.by.title()));
    let mut all = vec![ScreenLine::of(heading, Look::Reversed).fill(columns, Look::Reversed)];
    let rows = app.table.rows.iter().enumerate().skip(app.first_row).take(room.saturating_sub(1));
    for (place, row) in rows {
        let is_chosen = app.is_interactive && place == app.chosen_row;
        let plain = if is_chosen { Look::Reversed } else { Look::Plain };
        let mut line = ScreenLine::default();
        for (column, _, width, _) in shown.clone() {
            let (text, look) = cell(*column, row);
            line.add(format!("{text:>width$} "), if is_chosen { plain } else { look });
        }
        line.add(" ", plain);
        name(&mut line, row, name_columns, app.wish.by, is_chosen);
        all.push(if is_chosen { line.fill(columns, plain) } else { line });
    }
    if app.table.rows.is_empty() {
        all.push(ScreenLine::of(format!("  {}", app.why_empty()), Look::Dim));
    }
    all
}

const fn sign(app: &App) -> &'static str {
    if app.wish.is_reversed { "▲" } else { "▼" }
}

fn cell(column: Column, row: &Row) -> (String, Look) {
    let change = |value: i128| {
        let look = match value {
            0 => Look::Dim,
            1.. => Look::Grown,
            _ => Look::Shrunk,
        };
        (if value == 0 { "0".to_owned() } else { signed_bytes(value) }, look)
    };
    match column {
        Column::Live => (bytes(row.live_bytes), Look::Strong),
        Column::Growth => change(row.growth_bytes),
        Column::Since => change(row.since_bytes),
        Column::Rate => (rate(row.rate), Look::Plain),
        Column::Total => (bytes(row.total_bytes), Look::Plain),
        Column::Temporary => (count(row.temporary), Look::Plain),
        Column::Name => (String::new(), Look::Plain),
    }
}

/// Allocations in a second, in at most ten characters.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        rate if rate >= 1e9 => format!("{:.1}G", rate / 1e9),
        rate if rate > 0.0 && rate < 9.95 => format!("{rate:.1}"),
        rate => count(rate.round() as u64),
    }
}

/// The user's own code is as bright as the numbers; what is not is a little less so.
const fn owner_look(row: &Row) -> Look {
    match row.owner {
        None | Some(OwnerKind::Mine | OwnerKind::Unknown) => Look::Plain,
        Some(OwnerKind::Library | OwnerKind::Interpreter) => Look::Library,
        Some(_) => Look::Dim,
    }
}

fn name(line: &mut ScreenLine, row: &Row, columns: usize, by: By, is_chosen: bool) {
    let (plain, dim) =
        if is_chosen { (Look::Reversed, Look::Reversed) } else { (owner_look(row), Look::Dim) };
    if by == By::Stack {
        // Callers say more than the file.
        line.add(cut(&row.name, columns), if is_chosen { plain } else { Look::Plain });
        return;
    }
    // A file and its line are shown whole or not at all; the module goes first.
    let file = row.place.find(" [").map_or("", |module| &row.place[..module]);
    let fits = |place: &&str| columns >= LEAST_FOR_PLACE + place.width();
    let place = [row.place.as_str(), file].into_iter().find(fits).unwrap_or_default();
    line.add(list_name(&row.name, place, Some(columns)), plain);
    line.add(place, dim);
}

/// Columns of a name without which its place is left out.
const LEAST_FOR_PLACE: usize = 20;

fn detail(app: &App, room: usize) -> Vec<ScreenLine> {
    let Some(row) = app.table.rows.get(app.chosen_row) else {
        return vec![ScreenLine::of(format!("  {}", app.why_empty()), Look::Dim)];
    };
    let mut all = vec![
        ScreenLine::of(row.name.clone(), Look::Strong),
        ScreenLine::of(
            format!(
                "{} live, {} since zero, {} allocated in all, {} temporary",
                bytes(row.live_bytes),
                signed_bytes(row.since_bytes),
                bytes(row.total_bytes),
                count(row.temporary)
            ),
            Look::Plain,
        ),
        ScreenLine::default(),
    ];
    match &app.table.stack {
        None => all.push(ScreenLine::of("It has no stack of its own.", Look::Dim)),
        Some(ChosenStack { frames, folded, others }) => {
            all.extend(folded_text(*folded).map(|text| ScreenLine::of(text, Look::Dim)));
            if *others > 0 {
                let stacks = if *others == 1 { "stack" } else { "stacks" };
                let text = format!("Of {} more {stacks}, this one holds the most:", count(*others as u64));
                all.push(ScreenLine::of(text, Look::Dim));
            }
            let least = room.saturating_sub(all.len()).max(1);
            let first = app.first_frame.min(frames.len().saturating_sub(least));
            all.extend(
                frames.iter().skip(first).map(|frame| ScreenLine::of(format!("  {frame}"), Look::Plain)),
            );
        }
    }
    all
}

/// The keys.
const KEYS: [(&str, &str); 17] = [
    ("↑ ↓ PgUp PgDn Home End", "choose a row"),
    ("Enter", "its whole stack, and back"),
    ("Tab  1 2 3 4 5", "by function, line, stack, module, thread"),
    ("< >", "sort by the column before or behind"),
    ("l g z a t e n", "sort by live, growth, since zero, allocations, total, temporary, name"),
    ("r", "the other way round"),
    ("/", "only rows with a text; Esc shows all again"),
    ("0", "set the zero point: growth since now"),
    ("p  Space", "hold the screen, and go on"),
    ("m", "put a mark into the recording"),
    ("x  s", "stop the recording, start it again"),
    ("← →", "the moments of a recording that has ended"),
    ("?  h", "these keys"),
    ("q  Ctrl-C", "leave; the program goes on"),
    ("", ""),
    ("growth", "since the update before; since zero: since the key 0, or the start of cairn top"),
    ("temporary", "freed before their thread allocated another block"),
];

fn help() -> Vec<ScreenLine> {
    KEYS.iter()
        .map(|(keys, what)| {
            let mut line = ScreenLine::of(format!(" {keys:<23}"), Look::Strong);
            line.add(*what, Look::Plain);
            line
        })
        .collect()
}

fn foot(app: &App, columns: usize) -> ScreenLine {
    if let Some(Input { text, what }) = &app.input {
        let mut line = ScreenLine::of(format!("{}: ", what.prompt()), Look::Strong);
        // A long text shows its end, because the user types there.
        let room = columns.saturating_sub(line.width() + 1);
        let mut written = text.as_str();
        while written.width() > room {
            let mut rest = written.chars();
            rest.next();
            written = rest.as_str();
        }
        line.add(written, Look::Plain);
        line.add("_", Look::Dim);
        return line.fit(columns);
    }
    let keys = "q leave  Enter stack  Tab table  <> sort  / search  0 zero  p hold  ? keys";
    let line = match app.message() {
        Some(message) => ScreenLine::of(message, Look::Strong),
        None => ScreenLine::of(keys, Look::Dim),
    };
    line.fit(columns)
}

/// How long the recording lasted, and of a moment when that is.
pub(super) fn time(nanos: u64) -> String {
    match nanos {
        0..10_000_000_000 => duration(nanos),
        10_000_000_000..120_000_000_000 => format!("{:.1} s", nanos as f64 / 1e9),
        _ => duration(nanos),
    }
}

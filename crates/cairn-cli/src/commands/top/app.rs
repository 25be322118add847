//! The state of the screen: the latest update, the table made of it, and the effects of keys.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{Folding, HeapProfile};
use cairn_analysis::source::HeapFilter;
use cairn_format::recording::control::{Command, STATE, State};
use cairn_recording::{EndReason, command_from_outside, mark_from_outside};
use cairn_web::shown;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::naming::Naming;
use super::screen::{rate as rate_text, time};
use super::table::{By, Column, Counts, Table, TableSource, Wish, profile_at, rate};
use super::watch::Seen;
use crate::commands::heap_text::{bytes, count};

/// All of it.
pub(super) struct App {
    pub(super) wish: Wish,
    pub(super) table: Table,
    pub(super) chosen_row: usize,
    pub(super) first_row: usize,
    pub(super) first_frame: usize,
    pub(super) is_detail: bool,
    pub(super) is_help: bool,
    /// Whether there are keys.
    pub(super) is_interactive: bool,
    pub(super) input: Option<Input>,
    pub(super) is_held: bool,
    /// Rows that fit, as of the last screen.
    pub(super) page: usize,
    name: String,
    folding: Folding,
    filters: Filters,
    seen: Option<Box<Seen>>,
    /// The update that came while the screen was paused.
    waiting: Option<Box<Seen>>,
    before: Option<Counts>,
    zero: Option<Counts>,
    /// When the recording was seen last.
    taken: Instant,
    /// From the look before to the last one.
    seconds: f64,
    allocations_rate: f64,
    moments: Option<Moments>,
    wants_moments: bool,
    said: Option<(String, Instant)>,
    failure: Option<String>,
}

/// The blocks that are counted.
pub(super) struct Filters {
    pub(super) filters: Vec<HeapFilter>,
    /// The same as they were written.
    pub(super) texts: Vec<String>,
}

impl Filters {
    fn has_thread(&self) -> bool {
        self.filters.iter().any(|filter| matches!(filter, HeapFilter::Thread(_)))
    }

    fn has_stack(&self) -> bool {
        !self.filters.iter().all(HeapFilter::is_of_blocks)
    }
}

/// The time of a recording that has ended.
struct Moments {
    slices: Slices,
    at: usize,
    profile: HeapProfile,
}

/// A text that is being written.
pub(super) struct Input {
    pub(super) text: String,
    pub(super) what: InputKind,
}

/// The use of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InputKind {
    Search,
    Mark,
}

impl InputKind {
    pub(super) const fn prompt(self) -> &'static str {
        match self {
            Self::Search => "search",
            Self::Mark => "text of the mark",
        }
    }
}

/// The effect of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reaction {
    /// Only the screen is another one.
    Redraw,
    /// The table is to be made again.
    Remake,
    /// The moments of the recording are wanted.
    WantMoments,
    Leave,
}

/// A message is there for so long.
const MESSAGE_TIME: Duration = Duration::from_secs(5);
/// Longer texts are no search.
const MOST_INPUT: usize = 200;

impl App {
    pub(super) fn new(
        name: String,
        wish: Wish,
        folding: Folding,
        filters: Filters,
        is_interactive: bool,
    ) -> Self {
        Self {
            wish,
            table: Table::default(),
            chosen_row: 0,
            first_row: 0,
            first_frame: 0,
            is_detail: false,
            is_help: false,
            is_interactive,
            input: None,
            is_held: false,
            page: 10,
            name,
            folding,
            filters,
            seen: None,
            waiting: None,
            before: None,
            zero: None,
            taken: Instant::now(),
            seconds: 0.0,
            allocations_rate: 0.0,
            moments: None,
            wants_moments: false,
            said: None,
            failure: None,
        }
    }

    /// Takes the latest look at the recording; true when the screen shows it.
    pub(super) fn saw(&mut self, seen: Box<Seen>) -> bool {
        if self.is_held && self.seen.is_some() {
            self.waiting = Some(seen);
            return false;
        }
        let now = Counts::of(&seen.read.profile, &seen.about);
        let since = std::mem::replace(&mut self.taken, Instant::now()).elapsed();
        if let Some(old) = &self.seen {
            let before = Counts::of(&old.read.profile, &old.about);
            // Times of the recording are those of the events; where none came, that of the clock on
            // the wall passes all the same.
            self.seconds = match now.nanos.saturating_sub(before.nanos) {
                0 => since.as_secs_f64(),
                nanos => nanos as f64 / 1e9,
            };
            self.allocations_rate = rate(now.total.1.saturating_sub(before.total.1), self.seconds);
            self.before = Some(before);
        }
        // Memory that was there already has not grown since.
        if self.zero.is_none() || self.seen.as_ref().is_some_and(|old| old.is_behind) {
            self.zero = Some(Counts::of(&seen.read.profile, &seen.about));
        }
        if self.before.is_none() {
            self.before = Some(now);
        }
        self.seen = Some(seen);
        true
    }

    /// Cannot be read any more.
    pub(super) fn failed(&mut self, why: String) {
        self.failure = Some(why);
    }

    pub(super) fn took_moments(&mut self, slices: Slices, naming: &Naming) {
        let last = slices.count.saturating_sub(1);
        self.wants_moments = false;
        self.go_to(Some((slices, last.saturating_sub(1))), naming);
    }

    /// True when what is shown is all that there is by now.
    pub(super) fn is_complete(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| !seen.is_behind)
    }

    /// By how much what was read so far is older than now, while it is read on.
    pub(super) fn behind_nanos(&self) -> Option<u64> {
        self.seen.as_ref().filter(|seen| seen.is_behind)?.behind_nanos
    }

    /// True once nothing follows.
    pub(super) fn is_over(&self) -> bool {
        self.failure.is_some() || self.seen.as_ref().is_some_and(|seen| seen.has_ended)
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Makes the table of what was seen last.
    pub(super) fn remake(&mut self, naming: &Naming) {
        let Some(seen) = &self.seen else { return };
        let (Some(before), Some(zero)) = (&self.before, &self.zero) else { return };
        let key = self.table.rows.get(self.chosen_row).map(|row| row.key.clone());
        let profile = self.moments.as_ref().map_or(&seen.read.profile, |moments| &moments.profile);
        let source = TableSource {
            profile,
            about: &seen.about,
            stacks: &seen.stacks,
            namer: naming,
            folding: self.folding.clone(),
            filters: &self.filters.filters,
            before,
            zero,
            seconds: self.seconds,
        };
        self.wish.chosen = key.clone().filter(|_| self.is_detail);
        self.table = source.table(&self.wish);
        naming.ask();
        // The first row stays the first one; another one is followed wherever it goes.
        if let Some(place) = key.and_then(|key| self.table.rows.iter().position(|row| row.key == key))
            && (self.chosen_row > 0 || self.is_detail)
        {
            self.chosen_row = place;
        }
        self.keep_in_view();
    }

    fn keep_in_view(&mut self) {
        let rows = self.table.rows.len();
        self.chosen_row = self.chosen_row.min(rows.saturating_sub(1));
        let page = self.page.max(1);
        self.first_row = self.first_row.min(self.chosen_row).max((self.chosen_row + 1).saturating_sub(page));
    }

    /// Adapts to the number of lines of the screen.
    pub(super) fn resized(&mut self, lines: usize) {
        // The head has some of them.
        self.page = lines.saturating_sub(6).max(1);
        self.keep_in_view();
    }

    pub(super) fn title(&self) -> String {
        let Some(seen) = &self.seen else { return shown(&self.name).into_owned() };
        let command = seen.about.command.join(" ");
        let name = if command.is_empty() { &self.name } else { &command };
        shown(name).into_owned()
    }

    pub(super) fn state_text(&self) -> String {
        let Some(seen) = &self.seen else { return "reading …".to_owned() };
        let process = seen.about.process;
        let state = match &self.failure {
            Some(_) => "cannot be read any more".to_owned(),
            None if let Some(kind) = seen.file_kind => format!("a file that is complete ({kind})"),
            None if seen.has_ended => match seen.about.end {
                Some(EndReason::Exec) => "became another program".to_owned(),
                Some(_) => "ended".to_owned(),
                None => "ended without notice".to_owned(),
            },
            None if seen.is_behind => match seen.behind_nanos {
                Some(nanos) => format!("catching up: {} behind", time(nanos)),
                None => "being read …".to_owned(),
            },
            None if seen.is_replaced => "became another program".to_owned(),
            None => match self.recorder_state() {
                Some(State::Paused) => "recording stopped".to_owned(),
                Some(State::Full) => "no room to record".to_owned(),
                _ if let Some(nanos) = seen.behind_nanos => {
                    format!("as of {} ago, the cairn that packs it is stopped", time(nanos))
                }
                _ => "recording".to_owned(),
            },
        };
        let held = if self.is_held { ", held" } else { "" };
        let moment = self.moments.as_ref().map_or_else(String::new, |moments| {
            format!(", moment {} of {}", moments.at + 1, moments.slices.count)
        });
        let of = if process == 0 { String::new() } else { format!("process {process}: ") };
        format!("{of}{state}{held}{moment}")
    }

    fn recorder_state(&self) -> Option<State> {
        let spool = self.seen.as_ref()?.spool.as_ref()?;
        let mut word = [0; 8];
        File::open(spool).and_then(|file| cairn_files::read_exact_at(&file, &mut word, STATE as u64)).ok()?;
        Some(State::from_word(u64::from_le_bytes(word)))
    }

    /// The names and values of the head.
    pub(super) fn facts(&self, is_narrow: bool) -> Vec<(&'static str, String)> {
        let Some(seen) = &self.seen else { return Vec::new() };
        let read = &seen.read;
        let profile = self.moments.as_ref().map_or(&read.profile, |moments| &moments.profile);
        let mut facts = vec![("time", time(profile.end_nanos))];
        let about = if profile.sampling.is_estimate() { "about " } else { "" };
        let live = profile.live_bytes_of_all;
        facts.push(("live", format!("{about}{}", bytes(live))));
        if seen.is_image {
            facts.retain(|(name, _)| *name != "time");
            facts.push(("blocks", count(profile.totals.live_blocks)));
            return facts;
        }
        let peak = format!("{about}{}", bytes(read.profile.peak_bytes_of_all));
        let when = time(read.profile.peak_nanos);
        facts.push(("peak", if is_narrow { peak } else { format!("{peak} at {when}") }));
        // The other facts are of the whole program, filters or not; these are of what is counted.
        if self.filters.texts.is_empty() {
            if !seen.has_ended {
                facts.push(("allocations/s", rate_text(self.allocations_rate)));
            }
            if !is_narrow {
                facts.push(("allocations", count(profile.totals.allocations)));
            }
        }
        let until = profile.end_nanos;
        if let Some(sample) = read.usage.iter().rev().find(|sample| sample.nanos <= until) {
            facts.push(("RSS", bytes(sample.resident_bytes)));
            facts.push(("threads", count(sample.threads.into())));
        } else if !seen.about.threads.is_empty() {
            facts.push(("threads seen", count(seen.about.threads.len() as u64)));
        }
        facts
    }

    /// Bytes over time.
    pub(super) fn live_over_time(&self) -> Option<Vec<u64>> {
        let profile = &self.seen.as_ref()?.read.profile;
        let bins = profile.timeline.bins.iter().map(|bin| bin.most_bytes);
        let values: Vec<u64> = bins.collect();
        let until = self.moments.as_ref().map_or(values.len(), |moments| {
            let share = (moments.at + 1) as f64 / moments.slices.count.max(1) as f64;
            (values.len() as f64 * share).ceil() as usize
        });
        values.get(..until.min(values.len())).filter(|values| !values.is_empty()).map(<[u64]>::to_vec)
    }

    pub(super) fn why_empty(&self) -> &'static str {
        match &self.seen {
            None => "reading the recording …",
            Some(_) if self.wish.by == By::Thread && self.filters.has_stack() => {
                "threads are not known of some stacks: leave --filter function and module out"
            }
            Some(seen) if self.wish.by == By::Thread && seen.about.threads.is_empty() => {
                "this file does not say which thread allocated a block"
            }
            Some(_) if !self.wish.search.is_empty() => "no row has that text; Esc shows all",
            Some(_) if !self.filters.filters.is_empty() && !self.filters.has_thread() => {
                "no allocation matches --filter"
            }
            Some(seen) if seen.has_ended => "no allocation was recorded",
            Some(_) if self.filters.has_thread() => {
                "no thread of this name or number has allocated such a block yet"
            }
            Some(_) => "no allocation was recorded yet",
        }
    }

    pub(super) fn message(&self) -> Option<String> {
        let said = self.said.as_ref().filter(|(_, since)| since.elapsed() < MESSAGE_TIME);
        if let Some((text, _)) = said {
            return Some(text.clone());
        }
        if let Some(why) = &self.failure {
            return Some(format!("{}; q leaves", shown(why)));
        }
        let has_ended = self.seen.as_ref().is_some_and(|seen| seen.has_ended);
        match (&self.wish.search, has_ended) {
            (search, _) if !search.is_empty() => {
                Some(format!("only what has \"{}\" in it; Esc shows all", shown(search)))
            }
            (_, true) => Some("the recording has ended: q leaves, ← → moments, ? keys".to_owned()),
            _ => None,
        }
    }

    fn say(&mut self, text: impl Into<String>) {
        self.said = Some((shown(&text.into()).into_owned(), Instant::now()));
    }

    pub(super) fn key(&mut self, key: KeyEvent, naming: &Naming) -> Reaction {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => Reaction::Leave,
                _ => Reaction::Redraw,
            };
        }
        if self.input.is_some() {
            return self.write(key.code);
        }
        match key.code {
            KeyCode::Char('q') => return Reaction::Leave,
            KeyCode::Char('?' | 'h') => self.is_help = !self.is_help,
            KeyCode::Esc if self.is_help => self.is_help = false,
            KeyCode::Esc if self.is_detail => self.is_detail = false,
            KeyCode::Esc => {
                self.wish.search.clear();
                return Reaction::Remake;
            }
            KeyCode::Enter => {
                self.is_detail = !self.is_detail;
                self.first_frame = 0;
                return Reaction::Remake;
            }
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-(self.page as isize)),
            KeyCode::PageDown => self.step(self.page as isize),
            KeyCode::Home => self.step(isize::MIN / 2),
            KeyCode::End => self.step(isize::MAX / 2),
            KeyCode::Left => return self.step_moment(-1, naming),
            KeyCode::Right => return self.step_moment(1, naming),
            KeyCode::Tab => return self.show_by(self.wish.by.step(1)),
            KeyCode::BackTab => return self.show_by(self.wish.by.step(By::ALL.len() - 1)),
            KeyCode::Char('<') => return self.sort_by(self.wish.column.step(Column::ALL.len() - 1)),
            KeyCode::Char('>') => return self.sort_by(self.wish.column.step(1)),
            KeyCode::Char('r') => {
                self.wish.is_reversed = !self.wish.is_reversed;
                return Reaction::Remake;
            }
            KeyCode::Char('/') => {
                self.input = Some(Input { text: self.wish.search.clone(), what: InputKind::Search });
            }
            KeyCode::Char('p' | ' ') => return self.hold(),
            KeyCode::Char('0') => return self.set_zero(),
            KeyCode::Char('m') => match self.spool() {
                Some(_) => self.input = Some(Input { text: String::new(), what: InputKind::Mark }),
                None => self.say(self.why_deaf()),
            },
            KeyCode::Char('x') => self.command(Command::Pause, "asked the program to stop recording"),
            KeyCode::Char('s') => self.command(Command::Record, "asked the program to record"),
            KeyCode::Char(character) => {
                if let Some(by) = ('1'..='5').position(|digit| digit == character) {
                    return self.show_by(By::ALL[by]);
                }
                let letters = ['l', 'g', 'z', 'a', 't', 'e', 'n'];
                if let Some(column) = letters.iter().position(|letter| *letter == character) {
                    return self.sort_by(Column::ALL[column]);
                }
            }
            _ => {}
        }
        Reaction::Redraw
    }

    fn write(&mut self, key: KeyCode) -> Reaction {
        let Some(input) = &mut self.input else { return Reaction::Redraw };
        match key {
            KeyCode::Char(character) if input.text.len() < MOST_INPUT => input.text.push(character),
            KeyCode::Backspace => drop(input.text.pop()),
            KeyCode::Esc => {
                let is_search = input.what == InputKind::Search;
                self.input = None;
                if is_search {
                    self.wish.search.clear();
                    return Reaction::Remake;
                }
            }
            KeyCode::Enter => {
                let Some(Input { text, what }) = self.input.take() else { return Reaction::Redraw };
                match what {
                    InputKind::Search => self.wish.search = text.to_lowercase(),
                    InputKind::Mark => self.mark(&text),
                }
                return Reaction::Remake;
            }
            _ => {}
        }
        // A search shows what it finds while it is written.
        if let Some(Input { text, what: InputKind::Search }) = &self.input {
            self.wish.search = text.to_lowercase();
            return Reaction::Remake;
        }
        Reaction::Redraw
    }

    fn step(&mut self, by: isize) {
        if self.is_detail {
            self.first_frame = self.first_frame.saturating_add_signed(by);
            let frames = self.table.stack.as_ref().map_or(0, |stack| stack.frames.len());
            self.first_frame = self.first_frame.min(frames.saturating_sub(1));
            return;
        }
        self.chosen_row = self.chosen_row.saturating_add_signed(by);
        self.keep_in_view();
    }

    fn show_by(&mut self, by: By) -> Reaction {
        self.wish.by = by;
        self.is_detail = false;
        (self.chosen_row, self.first_row) = (0, 0);
        Reaction::Remake
    }

    fn sort_by(&mut self, column: Column) -> Reaction {
        self.wish.column = column;
        self.wish.is_reversed = false;
        Reaction::Remake
    }

    fn hold(&mut self) -> Reaction {
        self.is_held = !self.is_held;
        match self.waiting.take() {
            Some(seen) if !self.is_held => {
                self.saw(seen);
                Reaction::Remake
            }
            waiting => {
                self.waiting = waiting;
                Reaction::Redraw
            }
        }
    }

    fn set_zero(&mut self) -> Reaction {
        let Some(seen) = &self.seen else { return Reaction::Redraw };
        let profile = self.moments.as_ref().map_or(&seen.read.profile, |moments| &moments.profile);
        self.zero = Some(Counts::of(profile, &seen.about));
        let at = time(profile.end_nanos);
        self.say(format!("growth is counted from {at} on"));
        Reaction::Remake
    }

    fn spool(&self) -> Option<PathBuf> {
        self.seen.as_ref().filter(|seen| !seen.has_ended)?.spool.clone()
    }

    /// Returns why the program takes no requests.
    const fn why_deaf(&self) -> &'static str {
        match self.seen {
            Some(_) => "the recording has ended; the program takes no requests any more",
            None => "the recording is being read; a moment",
        }
    }

    fn mark(&mut self, text: &str) {
        let Some(spool) = self.spool() else { return };
        match mark_from_outside(&spool, text.as_bytes()) {
            Ok(()) => self.say(format!("marked: {text}")),
            Err(error) => self.say(format!("no mark: {error}")),
        }
    }

    fn command(&mut self, command: Command, said: &str) {
        let Some(spool) = self.spool() else { return self.say(self.why_deaf()) };
        match command_from_outside(&spool, command) {
            Ok(()) => self.say(said),
            Err(error) => self.say(error.to_string()),
        }
    }

    fn step_moment(&mut self, by: isize, naming: &Naming) -> Reaction {
        if !self.seen.as_ref().is_some_and(|seen| seen.has_ended) {
            self.say("moments are for recordings that have ended");
            return Reaction::Redraw;
        }
        match self.moments.take() {
            Some(Moments { slices, at, .. }) => {
                let at = at.saturating_add_signed(by);
                self.go_to(Some((slices, at)), naming);
                Reaction::Redraw
            }
            None if self.wants_moments => Reaction::Redraw,
            None => {
                self.wants_moments = true;
                self.say("reading the moments of the recording …");
                Reaction::WantMoments
            }
        }
    }

    fn go_to(&mut self, moment: Option<(Slices, usize)>, naming: &Naming) {
        if let (Some((slices, at)), Some(seen)) = (moment, &self.seen) {
            let whole = &seen.read.profile;
            let at = at.min(slices.count.saturating_sub(1));
            let profile = profile_at(whole, &slices, at);
            let before = match at.checked_sub(1) {
                Some(before) => Counts::of(&profile_at(whole, &slices, before), &seen.about),
                None => Counts::nothing(),
            };
            self.seconds = slices.slice_nanos as f64 / 1e9;
            self.before = Some(before);
            self.moments = Some(Moments { slices, at, profile });
        }
        self.remake(naming);
    }
}

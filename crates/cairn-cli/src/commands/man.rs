//! `cairn man`: manual pages, from the definitions that arguments are parsed by.

use std::io::{self, Write};
use std::path::PathBuf;

use cairn_files::Directory;
use clap::{Args, CommandFactory};
use clap_mangen::Man;
use roff::{Roff, roman};

use crate::new_file::Output;
use crate::output::Outcome;

/// Write manual pages
///
/// Writes a page for cairn and one for each subcommand to a directory; without a directory, prints
/// the page of cairn.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cairn man | man -l -
  cairn man ~/.local/share/man/man1     then: man cairn-heap")]
pub(crate) struct ManCommand {
    /// Directory for the pages; it is created if it is missing
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,

    /// Replace existing pages
    #[arg(long, requires = "directory")]
    force: bool,
}

impl ManCommand {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let mut command = crate::Cairn::command().disable_help_subcommand(true);
        // Gives subcommands their names, `cairn-heap`, and the global options.
        command.build();
        let mut pages = Vec::new();
        add_pages(command, &mut pages)?;
        let Some(directory) = &self.directory else {
            let mut output = crate::output::stdout();
            if let Some(page) = pages.first() {
                output.write_all(&page.text)?;
            }
            output.flush()?;
            return Ok(Outcome::Done);
        };
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
        Directory::open_or_make(directory).map_err(named)?;
        for page in pages {
            let mut file = Output::begin(&directory.join(format!("{}.1", page.name)), self.force)?;
            file.write_all(&page.text)?;
            file.finish()?;
        }
        Ok(Outcome::Done)
    }
}

/// A manual page.
struct ManPage {
    /// The name without the section: `cairn-heap`.
    name: String,
    text: Vec<u8>,
}

/// Adds the page of a command that was built, and those of its subcommands.
fn add_pages(mut command: clap::Command, pages: &mut Vec<ManPage>) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let subcommands: Vec<_> =
        command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).cloned().collect();
    // The library's own synopsis lists all options again.
    let usage = command.render_usage().to_string().replace("Usage: ", "").replace("       ", "");
    let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let man = Man::new(command);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    unfilled("SYNOPSIS", usage.lines()).to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if !subcommands.is_empty() {
        man.render_subcommands_section(&mut text)?;
    }
    for section in sections(&notes) {
        section.to_writer(&mut text)?;
    }
    pages.push(ManPage { name, text });
    subcommands.into_iter().try_for_each(|subcommand| add_pages(subcommand, pages))
}

/// Turns the text below the options into sections: examples, exit codes, and notes.
///
/// The lines of notes are unchanged.
///
/// The library would fill the lines of examples into one paragraph.
fn sections(text: &str) -> Vec<Roff> {
    let paragraphs = text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty());
    paragraphs
        .map(|paragraph| match paragraph.strip_prefix("Examples:\n") {
            Some(examples) => unfilled("EXAMPLES", examples.lines()),
            None if paragraph.starts_with("Exit codes") => unfilled("EXIT STATUS", paragraph.lines()),
            None => unfilled("NOTES", paragraph.lines()),
        })
        .collect()
}

/// Returns a section whose lines stay as they are.
fn unfilled<'a>(heading: &str, lines: impl Iterator<Item = &'a str>) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [heading]).control("nf", []);
    for line in lines {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff
}

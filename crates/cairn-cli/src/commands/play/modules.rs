//! When each module was where: a table, and a picture of the terminal's width.

use std::io::{self, Write};

use cairn_analysis::player::{Filter, PlayedModule, Tables, bars};
use cairn_symbols::BuildId;

use super::text::{seconds, shown_time};
use super::{TimeStyle, json};
use crate::output::printable;

/// Columns of the picture where the terminal's width is not known.
const COLUMNS: usize = 100;

/// Columns of a name in the picture; longer ones are cut.
const NAME_COLUMNS: usize = 24;

/// Prints the modules that were there in the wanted time.
pub(super) fn print(
    output: &mut impl Write,
    tables: &dyn Tables,
    filter: &Filter,
    as_json: bool,
    style: TimeStyle,
) -> io::Result<()> {
    let window = window(tables, filter);
    let wanted: Vec<(usize, &PlayedModule)> = tables
        .modules()
        .iter()
        .enumerate()
        .filter(|(_, module)| {
            module.loaded_nanos < window.1
                && module.unloaded_nanos.is_none_or(|unloaded| unloaded > window.0)
                && filter.takes_module(module)
        })
        .collect();
    if as_json {
        return wanted.iter().try_for_each(|(index, module)| json::module(output, *index, module));
    }
    table(output, &wanted, tables, style)?;
    if !wanted.is_empty() {
        writeln!(output)?;
        picture(output, &wanted, window)?;
    }
    Ok(())
}

/// The wanted time, at most from the first to the last thing that happened.
fn window(tables: &dyn Tables, filter: &Filter) -> (i64, i64) {
    let (since, until) = filter.window(tables);
    let (first, last) = tables.extent();
    (since.max(first), until.min(last.saturating_add(1)))
}

fn table(
    output: &mut impl Write,
    wanted: &[(usize, &PlayedModule)],
    tables: &dyn Tables,
    style: TimeStyle,
) -> io::Result<()> {
    let time = |nanos: i64| match style {
        TimeStyle::Clock => seconds(nanos),
        other => shown_time(nanos, tables, other).into_owned(),
    };
    let rows: Vec<[String; 6]> = wanted
        .iter()
        .map(|(index, module)| {
            let build_id = BuildId::new(&module.file.build_id).to_string();
            [
                index.to_string(),
                time(module.loaded_nanos),
                module.unloaded_nanos.map_or_else(|| "-".to_owned(), time),
                format!("{}-{}", module.start, module.end),
                if build_id.is_empty() { "-".to_owned() } else { build_id.chars().take(12).collect() },
                printable(&module.path).into_owned(),
            ]
        })
        .collect();
    let head = ["load", "loaded", "unloaded", "addresses", "build id", "module"].map(str::to_owned);
    let mut widths = [0; 6];
    for row in std::iter::once(&head).chain(&rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for [load, loaded, unloaded, addresses, build_id, module] in std::iter::once(&head).chain(&rows) {
        let [a, b, c, d, e, _] = widths;
        writeln!(
            output,
            "{load:>a$}  {loaded:>b$}  {unloaded:>c$}  {addresses:d$}  {build_id:e$}  {module}"
        )?;
    }
    Ok(())
}

/// ```text
///                             0.000000000                 0.000004000
/// 0x7ff610030000  B.dll       [========]
/// 0x7ff610030000  D.dll                 [=====================
/// ```
fn picture(output: &mut impl Write, wanted: &[(usize, &PlayedModule)], window: (i64, i64)) -> io::Result<()> {
    let modules: Vec<PlayedModule> = wanted.iter().map(|(_, module)| (*module).clone()).collect();
    let addresses = modules.iter().map(|module| module.start.to_string().len()).max().unwrap_or(0);
    let shown =
        |module: &PlayedModule| -> String { printable(module.name()).chars().take(NAME_COLUMNS).collect() };
    let names = modules.iter().map(|module| shown(module).chars().count()).max().unwrap_or(0);
    let margin = addresses + names + 4;
    let columns = terminal_columns().saturating_sub(margin).max(20);
    let (since, until) = (seconds(window.0), seconds(window.1.saturating_sub(1)));
    let gap = columns.saturating_sub(since.len() + until.len()).max(1);
    writeln!(output, "{:margin$}{since}{:gap$}{until}", "", "")?;
    for bar in bars(&modules, window, columns) {
        let Some(module) = modules.get(bar.module) else { continue };
        let mut line: Vec<char> = vec![' '; columns];
        for (column, place) in line.iter_mut().enumerate().take(bar.last + 1).skip(bar.first) {
            *place = match column {
                column if column == bar.first && bar.begins => '[',
                column if column == bar.last && bar.ends => ']',
                _ => '=',
            };
        }
        let line: String = line.into_iter().collect();
        let (start, name) = (module.start.to_string(), shown(module));
        writeln!(output, "{start:>addresses$}  {name:names$}  {}", line.trim_end())?;
    }
    Ok(())
}

fn terminal_columns() -> usize {
    let stated = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    stated
        .or_else(|| terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)))
        .unwrap_or(COLUMNS)
        .clamp(40, 1000)
}

//! The page: everything in one HTML file without scripts that asks no network.
//!
//! - In: rows, the drive's profile, a recording. Out: the file's text.
//! - Invariants: every text from outside passes the template's escaping, and no control character survives; the page is
//!   well-formed XML, too, and forbids itself scripts and loads.

use flint_rt::disk::profile::DriveProfile;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, UndefinedBehavior};
use serde_json::json;

use super::figure::Figure;
use super::recorded::{LayerColumn, Recorded};
use super::{drive, heat_map, palette, pools, timeline, words};
use crate::bench::Row;

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// The ending asks for HTML's escaping.
const TEMPLATE_NAME: &str = "page.html";

/// All that a page may show.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Material<'a> {
    /// At least one.
    pub(crate) rows: &'a [Row],
    pub(crate) profile: Option<&'a DriveProfile>,
    pub(crate) recorded: Option<&'a Recorded>,
}

/// The page.
pub(crate) fn page(material: &Material<'_>) -> String {
    let Material { rows, profile, recorded } = *material;
    let first = &rows[0];
    let model = first.model_filename.rsplit('/').next().unwrap_or_default();
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_template(TEMPLATE_NAME, TEMPLATE).expect("invariant: the template is ours, and tested");
    let template = environment.get_template(TEMPLATE_NAME).expect("invariant: it was just added");
    let page = template
        .render(Value::from(Serde(json!({
            "style": format!("{STYLE}\n@media (prefers-color-scheme: dark) {{\n{}}}\n", palette::dark_rules()),
            "model": model,
            "device": first.gpu_info,
            "time": first.test_time,
            "highlights": words::highlights(rows),
            "columns": words::COLUMNS,
            "rows": rows.iter().map(words::cells).collect::<Vec<_>>(),
            "pools": pools::figures(rows),
            "drive": profile.map(drive::figures).unwrap_or_default(),
            "heat": heat(rows, recorded),
            "timeline": recorded.and_then(timeline::figure),
            "recorded_title": recorded.map(|recorded| &recorded.title),
            "settings": words::settings(rows, profile),
            "gaps": words::gaps(rows, profile, recorded),
        }))))
        .expect("invariant: the template names only what is given, and tested");
    without_controls(&page)
}

/// Hits by layer: over the sizes of a sweep where rows have them, else over the recorded tokens.
fn heat(rows: &[Row], recorded: Option<&Recorded>) -> Option<Figure> {
    let columns = swept(rows);
    if columns.len() > 1 {
        let note = format!("Share of uses that found their expert in device memory, in {}.", columns[0].0);
        let columns: Vec<LayerColumn> = columns.into_iter().map(|(_, column)| column).collect();
        return heat_map::figure(&columns, "share of all experts in the pool", note);
    }
    let recorded = recorded?;
    let note = "Share of uses that found their expert in device memory, token by token in the recorded pass.";
    heat_map::figure(&recorded.tokens, "token", note.to_owned())
}

/// Columns of the generation test that ran at most sizes, with its name, by rising size.
fn swept(rows: &[Row]) -> Vec<(String, LayerColumn)> {
    let has_layers = |row: &&Row| !row.layer_hits.is_empty() && row.n_gen > 0 && row.n_prompt == 0;
    let Some(first) = rows.iter().find(has_layers) else { return Vec::new() };
    let mut rows: Vec<&Row> = rows.iter().filter(has_layers).filter(|row| row.test == first.test).collect();
    rows.sort_by(|a, b| a.pool_share.total_cmp(&b.pool_share));
    rows.dedup_by_key(|row| row.pool_slots);
    let column = |row: &Row| LayerColumn {
        label: format!("{:.0} %", 100.0 * row.pool_share),
        layers: row.layer_hits.clone(),
    };
    rows.into_iter().map(|row| (row.test.clone(), column(row))).collect()
}

/// Control characters, and those that turn the direction of text, are shown as unknown.
fn without_controls(text: &str) -> String {
    let is_bad = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FFFE}' | '\u{FFFF}')
    };
    text.replace(is_bad, "\u{FFFD}")
}

#[cfg(test)]
mod tests {
    use roxmltree::{Document, ParsingOptions};

    use super::*;
    use crate::report::made_up;

    fn parse(page: &str) -> Document<'_> {
        let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
        Document::parse_with_options(page, options).unwrap_or_else(|error| panic!("{error}"))
    }

    fn titles(document: &Document<'_>) -> Vec<String> {
        let captions = document.descendants().filter(|node| node.has_tag_name("figcaption"));
        let title = |node: roxmltree::Node<'_, '_>| {
            let strong = node.descendants().find(|node| node.has_tag_name("strong")).expect("a title");
            strong.text().expect("text").to_owned()
        };
        captions.map(title).collect()
    }

    #[test]
    fn a_page_of_everything_has_every_picture_and_row() {
        let (rows, profile, recorded) = (made_up::rows(), made_up::profile(), made_up::recorded());
        let page = page(&Material { rows: &rows, profile: Some(&profile), recorded: Some(&recorded) });
        let document = parse(&page);
        assert_eq!(
            titles(&document),
            [
                "Generation over pool size",
                "Prompts over pool size",
                "Hit rate over pool size",
                "Hits by layer",
                "One token",
                "Bandwidth over depth",
                "Bandwidth over block size",
                "Latency",
                "Bandwidth over time",
            ]
        );
        let body = document.descendants().find(|node| node.has_tag_name("tbody")).expect("a table");
        assert_eq!(body.children().filter(|node| node.has_tag_name("tr")).count(), rows.len());
        let svgs = document.descendants().filter(|node| node.tag_name().name() == "svg");
        assert!(svgs.filter(|svg| svg.attribute("role") == Some("img")).count() == 2 * 9, "two sizes each");
    }

    #[test]
    fn a_page_of_rows_alone_says_what_is_missing() {
        let rows = &made_up::rows()[..1];
        let page = page(&Material { rows, profile: None, recorded: None });
        assert_eq!(titles(&parse(&page)), Vec::<String>::new());
        for word in ["No profile of the drive", "No timeline", "One pool size"] {
            assert!(page.contains(word), "{word}");
        }
    }

    #[test]
    fn hostile_text_stays_text() {
        let mut rows = made_up::rows();
        for row in &mut rows {
            for text in [&mut row.model_filename, &mut row.gpu_info, &mut row.test, &mut row.routes] {
                *text = made_up::HOSTILE.to_owned();
            }
        }
        let (mut profile, mut recorded) = (made_up::profile(), made_up::recorded());
        profile.drives[0].model = Some(made_up::HOSTILE.to_owned());
        recorded.title = made_up::HOSTILE.to_owned();
        recorded.tokens.iter_mut().for_each(|column| column.label = made_up::HOSTILE.to_owned());
        let page = page(&Material { rows: &rows, profile: Some(&profile), recorded: Some(&recorded) });
        let document = parse(&page);
        let names =
            document.descendants().filter(roxmltree::Node::is_element).map(|node| node.tag_name().name());
        for name in names {
            assert!(!["script", "img", "b", "iframe"].contains(&name), "{name} came in");
        }
        for node in document.descendants() {
            for attribute in node.attributes() {
                assert!(!attribute.name().starts_with("on"), "{attribute:?}");
            }
        }
        assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}') && !page.contains('\0'), "controls");
        assert!(document.descendants().any(|node| node.text().is_some_and(|text| text.contains("<script>"))));
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        let (rows, profile, recorded) = (made_up::rows(), made_up::profile(), made_up::recorded());
        let page = page(&Material { rows: &rows, profile: Some(&profile), recorded: Some(&recorded) });
        let without_namespaces = page.replace("http://www.w3.org/", "");
        for word in ["http:", "https:", "url(", "@import", "src=", "<link", "<script"] {
            assert!(!without_namespaces.contains(word), "{word}");
        }
        assert!(page.contains("default-src 'none'"), "it forbids itself to");
    }
}

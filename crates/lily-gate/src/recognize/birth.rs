//! Dates of birth: a date in any usual form right after a cue. Other dates are no secret.

use regex::Regex;

use crate::{
    Category, Evidence,
    cues::Cue,
    text::{Hit, Scan},
};

const VERSION: u16 = 1;

/// Names of months and their abbreviations, in the languages of the cues.
const MONTHS: &str = "jan(?:uary|uar|vier|eiro|uari|uarie|ner)?|feb(?:ruary|ruar|rero|braio|ruari|ruarie)?|fév(?:rier)?|fev(?:ereiro)?|\
    mar(?:ch|zo|ço|s|et|tie|zec)?|mär(?:z)?|maart|apr(?:il|ile|ilie)?|avr(?:il)?|abr(?:il)?|may|mai|maj|mei|mayo|maggio|maio|\
    jun(?:e|i|io|ho|ie|ij)?|juin|giu(?:gno)?|jul(?:y|i|io|ho|ie)?|juil(?:let)?|lug(?:lio)?|aug(?:ust|ustus|usti)?|ago(?:sto)?|août|aout|\
    sep(?:tember|t|tiembre|tembre)?|set(?:tembre|embro)?|oct(?:ober|ubre|obre)?|okt(?:ober|oober)?|ott(?:obre)?|out(?:ubro)?|\
    nov(?:ember|iembre|embre|embro)?|dec(?:ember|embrie)?|dez(?:ember|embro)?|dic(?:iembre|embre)?|déc(?:embre)?|ene(?:ro)?|gen(?:naio)?|\
    stycznia|lutego|marca|kwietnia|maja|czerwca|lipca|sierpnia|września|października|listopada|grudnia|\
    января|февраля|марта|апреля|мая|июня|июля|августа|сентября|октября|ноября|декабря|\
    січня|лютого|березня|квітня|травня|червня|липня|серпня|вересня|жовтня|листопада|грудня|\
    ocak|şubat|mart|nisan|mayıs|haziran|temmuz|ağustos|eylül|ekim|kasım|aralık|\
    يناير|فبراير|مارس|أبريل|مايو|يونيو|يوليو|أغسطس|سبتمبر|أكتوبر|نوفمبر|ديسمبر|जनवरी|फरवरी|मार्च|अप्रैल|मई|जून|जुलाई|अगस्त|सितंबर|अक्टूबर|नवंबर|दिसंबर|\
    január|február|marec|leden|ledna|února|března|dubna|května|června|července|srpna|září|října|listopadu|prosince|tammikuuta|\
    helmikuuta|maaliskuuta|huhtikuuta|toukokuuta|kesäkuuta|heinäkuuta|elokuuta|syyskuuta|lokakuuta|marraskuuta|joulukuuta";

/// Characters after a cue in which the date may stand.
const REACH: usize = 48;

/// The pattern of dates, compiled.
#[derive(Debug)]
pub(crate) struct Birth {
    date: Regex,
}

impl Birth {
    pub fn new() -> Result<Self, regex::Error> {
        let date = [
            // 1990-01-31, 1990/1/31, 1990.01.31, 1990年1月31日, 1990년 1월 31일
            r"[0-9]{4}\s?[-/.年년]\s?[0-9]{1,2}\s?[-/.月월]\s?[0-9]{1,2}(?:\s?[日일])?",
            // 31/01/1990, 1-31-90, 31.1.1990, 31 / 01 / 1990
            r"[0-9]{1,2}\s?[-/.]\s?[0-9]{1,2}\s?[-/.]\s?(?:[0-9]{4}|[0-9]{2})(?-u:\b)",
            // 31 January 1990, 31st of January, 1990, 31. Januar 1990, 31 de enero de 1990
            &format!(r"[0-9]{{1,2}}(?:st|nd|rd|th|er|º|ª)?\.?(?:\s|-)(?:of\s|de\s)?(?:{MONTHS})\.?(?:,|\s|-)+(?:de\s|del\s|of\s)?[0-9]{{2,4}}(?-u:\b)"),
            // January 31, 1990, Jan. 31st 1990
            &format!(r"(?:{MONTHS})\.?\s[0-9]{{1,2}}(?:st|nd|rd|th)?(?:,\s?|\s)[0-9]{{4}}(?-u:\b)"),
            // 19900131
            r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?-u:\b)",
        ]
        .join("|");
        Ok(Self { date: Regex::new(&format!("(?i:{date})"))? })
    }

    pub fn scan(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        let mut done = 0;
        for (_, cue) in scan.cues.iter().filter(|(c, _)| *c == Cue::Birth) {
            if cue.end < done {
                continue;
            }
            if let Some(range) = self.after(scan, cue.end).or_else(|| self.before(scan, cue.start)) {
                done = range.end;
                hits.push(Hit {
                    range,
                    category: Category::BirthDate,
                    evidence: Evidence::Cue,
                    recognizer: "birth_date",
                    version: VERSION,
                    subtype: None,
                });
            }
        }
    }

    fn after(&self, scan: &Scan, at: usize) -> Option<std::ops::Range<usize>> {
        let window = window(scan.text, at, REACH + 32);
        let found = self.date.find(window)?;
        let near = found.start() <= REACH && !window[..found.start()].contains("\n\n");
        let range = at + found.start()..at + found.end();
        (near && scan.is_bounded(&range)).then_some(range)
    }

    /// "1990年1月31日生まれ", "12.03.1980 г.р.": right before the cue.
    fn before(&self, scan: &Scan, at: usize) -> Option<std::ops::Range<usize>> {
        let mut start = at.saturating_sub(40);
        while !scan.text.is_char_boundary(start) {
            start += 1;
        }
        let found = self.date.find_iter(&scan.text[start..at]).last()?;
        let range = start + found.start()..start + found.end();
        let gap = &scan.text[range.end..at];
        (gap.len() <= 3 && scan.is_bounded(&(range.start..range.start))).then_some(range)
    }
}

/// At most `length` bytes from `at` on, cut at a character.
fn window(text: &str, at: usize, length: usize) -> &str {
    let mut end = (at + length).min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[at..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::texts;

    fn found(text: &str) -> Vec<String> {
        static ALL: std::sync::LazyLock<Birth> = std::sync::LazyLock::new(|| Birth::new().unwrap());
        texts(text, |s, h| ALL.scan(s, h))
    }

    #[test]
    fn dates_of_birth() {
        for (text, date) in [
            ("She was born on January 31, 1990 in Rome", "January 31, 1990"),
            ("DOB: 1990-01-31", "1990-01-31"),
            ("date of birth 31/01/1990.", "31/01/1990"),
            ("geboren am 31. Januar 1990", "31. Januar 1990"),
            ("nacido el 31 de enero de 1990", "31 de enero de 1990"),
            ("生年月日: 1990年1月31日", "1990年1月31日"),
            ("née le 1er mars 1990", "1er mars 1990"),
            ("родился 31 января 1990 года", "31 января 1990"),
            ("dateOfBirth\": \"19900131\"", "19900131"),
            ("born 3rd of March, 1985", "3rd of March, 1985"),
        ] {
            assert_eq!(found(text), [date], "{text}");
        }
        for text in ["the meeting is on 31/01/1990", "born to run", "released January 31, 1990"] {
            assert!(found(text).is_empty(), "{text}");
        }
    }
}

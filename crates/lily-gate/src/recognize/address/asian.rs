//! Addresses of China, Taiwan, Japan and Korea: from the province down to the house, the number last.

use regex::Regex;

use super::VERSION;
use crate::{
    Category, Evidence,
    text::{Hit, Scan},
};

/// The patterns, compiled.
#[derive(Debug)]
pub(super) struct Asian {
    pattern: Regex,
}

impl Asian {
    pub fn new() -> Result<Self, regex::Error> {
        let number = r"[0-9０-９一二三四五六七八九十百]{1,5}";
        let parts = [
            // China: 北京市朝阳区建国路88号SOHO现代城3号楼1201室, 上海徐汇区陈路s座 812345
            format!(
                r"(?:\d{{3}}(?:\d{{2,3}})?\s?)?(?:\p{{Han}}{{2,6}}(?:省|自治区|特别行政区|市|縣|县))?\p{{Han}}{{1,7}}(?:市|县|區|区|镇|鎮|乡|鄉|州|盟)\p{{Han}}{{1,12}}(?:路|街|道|巷|弄|胡同|大道|里|村|段|座|园|苑|小区|花园)(?:(?:\p{{Han}}{{0,4}}|{number})段)?\s?(?:(?:{number}|[A-Za-z])(?:號|号|弄|巷|栋|幢|座|楼|樓){{1,2}}(?:之{number})?){{0,4}}(?:{number}(?:室|单元|層|层|樓|楼|号|號))?(?:\s?\d{{6}})?"
            ),
            // A street and a number alone: 建国路88号; Taiwan: 110 台北市信義路5段7巷3號之2 4樓之1
            format!(
                r"(?:\d{{3}}(?:\d{{2,3}})?\s?)?\p{{Han}}{{2,12}}(?:路|街|大道|大街|巷|胡同|道)(?:{number}段)?(?:{number}巷)?(?:{number}弄)?{number}(?:號|号)(?:之{number})?(?:\s?{number}(?:樓|楼)(?:之{number})?)?(?:\p{{Han}}{{0,10}}{number}(?:室|楼|樓|层|層|号楼|栋|单元|座)){{0,3}}"
            ),
            // A street and a building by its letter: 淮安路x座
            r"\p{Han}{1,6}(?:路|街)[A-Za-z]座(?:\s?\d{6})?".to_owned(),
            // Japan: 東京都千代田区丸の内1-2-3, 北海道札幌市中央区北5条西2丁目5番地 ビル101
            format!(
                r"(?:〒?\s?\d{{3}}-\d{{4}}\s*)?(?:東京都|北海道|京都府|大阪府|\p{{Han}}{{2,3}}県)[\p{{Han}}\p{{Hiragana}}\p{{Katakana}}ヶケノー]{{1,16}}(?:[市区町村郡])?[\p{{Han}}\p{{Hiragana}}\p{{Katakana}}ー]{{0,12}}\s?(?:{number}(?:丁目|番地|番|号|条|-|－|−|ー|の)?){{1,5}}(?:\s?[\p{{Han}}\p{{Hiragana}}\p{{Katakana}}ーA-Za-z]{{1,20}}\s?\d{{1,4}}(?:号室|号)?)?"
            ),
            r"〒\s?\d{3}-\d{4}".to_owned(),
            // Korea: 서울특별시 강남구 테헤란로 123, 경기도 성남시 분당구 판교역로 12-3 101동 202호
            r"\p{Hangul}{2,7}(?:특별시|광역시|특별자치시|도|특별자치도|시)\s(?:\p{Hangul}{1,5}(?:시|군|구)\s){0,3}(?:\p{Hangul}{1,8}(?:읍|면|동|리|가)\s)?(?:\p{Hangul}{1,10}\d{0,4}(?:번)?(?:로|길|대로|거리|가)\s?\d{0,4}(?:번?길)?\s?)?(?:지하\s?)?\d{1,5}(?:-\d{1,4})?(?:\s?\([^)\n]{1,20}\))?(?:\s?\d{1,4}동)?(?:\s?\d{1,4}(?:호|층))?".to_string(),
        ];
        Ok(Self { pattern: Regex::new(&parts.join("|"))? })
    }

    pub fn scan(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        for found in self.pattern.find_iter(scan.text) {
            let text = found.as_str();
            // A district and a street without any number is news, not an address.
            if !text.chars().any(|c| c.is_numeric()) && !text.contains('座') {
                continue;
            }
            // The verb before the place is no part of it.
            let lead = LEADS
                .iter()
                .filter_map(|l| text.find(l).map(|at| at + l.len()))
                .filter(|at| *at <= 24)
                .max()
                .unwrap_or(0);
            hits.push(Hit {
                range: found.start() + lead..found.end(),
                category: Category::Address,
                evidence: Evidence::Shape,
                recognizer: "address",
                version: VERSION,
                subtype: Some("east_asia"),
            });
        }
    }
}

/// Words before a Chinese address that a pattern of characters would take along.
const LEADS: &[&str] = &[
    "我住在",
    "住在",
    "住址是",
    "地址是",
    "地址为",
    "位于",
    "寄到",
    "送到",
    "居住在",
    "家住",
    "住于",
    "搬到",
];

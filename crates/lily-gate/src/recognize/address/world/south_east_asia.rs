//! Thai, Lao, Khmer and Burmese, which put no blanks between words: the type opens the word that names the place.

use super::roles::{Roles, Row};

const JOINED_STREET: Roles = Roles::JOINED.with(Roles::BEFORE);
const JOINED_PLACE: Roles = Roles::JOINED.with(Roles::PLACE_BEFORE);
const JOINED_LABEL: Roles = Roles::JOINED.with(Roles::LABEL);
const JOINED_UNIT: Roles = Roles::JOINED.with(Roles::UNIT);

pub(super) const ROWS: &[Row] = &[
    // Thai
    (JOINED_STREET, "ถนน|ซอย|ตรอก|ทางหลวง"),
    (Roles::BEFORE, "ถ|ซ|ถนน|ซอย|ตรอก"),
    (JOINED_PLACE, "ตำบล|อำเภอ|จังหวัด|แขวง|เขต|หมู่บ้าน|หมู่ที่|หมู่|กรุงเทพ|กิ่งอำเภอ"),
    (Roles::PLACE_BEFORE, "ต|อ|จ|ม|ตำบล|อำเภอ|จังหวัด|แขวง|เขต|หมู่|หมู่ที่|กทม|มบ"),
    (JOINED_LABEL, "เลขที่|บ้านเลขที่|ที่อยู่"),
    (Roles::LABEL, "เลขที่|บ้านเลขที่"),
    (JOINED_UNIT, "ห้อง|ชั้น|ตึก|ห้องเลขที่"),
    (Roles::UNIT, "ห้อง|ชั้น|ตึก|ยูนิต"),
    (Roles::CODE, "รหัสไปรษณีย์"),
    (
        Roles::STOP,
        "ค่ะ|ครับ|คะ|นะ|และ|ที่|คน|บาท|ปี|กิโลเมตร|แล้ว|ของ|เป็น|มี|โทร|วัน|เดือน|ขอบคุณ|ตัว|เมตร|\
         เปอร์เซ็นต์",
    ),
    // Lao
    (JOINED_STREET, "ຖະໜົນ|ຖະຫນົນ|ຮ່ອມ"),
    (JOINED_PLACE, "ບ້ານ|ເມືອງ|ແຂວງ|ນະຄອນຫຼວງ"),
    (JOINED_LABEL, "ເລກທີ"),
    // Khmer
    (JOINED_STREET, "ផ្លូវ|មហាវិថី|វិថី|ផ្លូវលេខ"),
    (JOINED_PLACE, "ភូមិ|សង្កាត់|ខណ្ឌ|ស្រុក|ឃុំ|ខេត្ត|រាជធានី|ក្រុង"),
    (JOINED_LABEL, "ផ្ទះលេខ|លេខ|ផ្ទះ"),
    // Burmese: the type follows
    (Roles::AFTER, "လမ်း|လမ်းမ|လမ်းမကြီး"),
    (Roles::LABEL, "အမှတ်|တိုက်"),
    (Roles::PLACE_AFTER, "မြို့နယ်|မြို့|ရပ်ကွက်|ရွာ|တိုင်း"),
];

//! The cue words, language by language. Lower case; plurals, humps and other cases are found by themselves.

use crate::cues::Cue;

/// Words of a kind, separated by `|`.
pub(crate) const TABLE: &[(Cue, &str)] = &[
    (
        Cue::Card,
        "credit card|debit card|card number|card no|cardnumber|card|creditcard|credit-card|visa|mastercard|\
         amex|american express|maestro|discover card|pan number|cc number|cc no|kreditkarte|kreditkartennummer|\
         kartennummer|carte bancaire|carte de crédit|numéro de carte|carte bleue|tarjeta|tarjeta de crédito|\
         número de tarjeta|carta di credito|numero di carta|cartão|cartão de crédito|número do cartão|\
         creditcardnummer|kaartnummer|karta kredytowa|numer karty|karty|номер карты|карта|карты|кредитная карта|\
         信用卡|卡号|银行卡|クレジットカード|カード番号|카드번호|신용카드|بطاقة|kredi kartı|kart numarası|kortnummer|\
         kreditkort|betalkort|luottokortti|platební karta|bankkártya",
    ),
    (
        Cue::CardCode,
        "cvv|cvv2|cvc|cvc2|security code|prüfziffer|prüfnummer|cryptogramme|安全码|セキュリティコード",
    ),
    (Cue::Iban, "iban|international bank account number"),
    (
        Cue::Account,
        "account number|account no|acct number|acct no|acct|account num|accountnumber|bank account|\
         checking account|savings account|account #|a/c no|a/c|account|kontonummer|kontonr|konto-nr|konto|\
         numéro de compte|compte bancaire|n° de compte|número de cuenta|cuenta bancaria|nº de cuenta|cuenta|\
         numero di conto|conto corrente|número da conta|conta corrente|conta bancária|conta|rekeningnummer|\
         rekening|numer konta|numer rachunku|rachunek|číslo účtu|bankszámlaszám|номер счета|номер счёта|\
         расчетный счет|р/с|账号|账户|銀行口座|口座番号|계좌번호|계좌|hesap numarası|hesap no|tilinumero|clabe",
    ),
    (
        Cue::Routing,
        "routing number|routing no|routing|aba number|aba|aba routing|sort code|sortcode|bsb|bankleitzahl|blz|\
         transit number|ifsc|ifsc code|bank code|code banque|code guichet|бик",
    ),
    (Cue::Swift, "swift|swift code|bic|swift/bic|bic/swift|bic code|swift-code"),
    (
        Cue::Wallet,
        "wallet|bitcoin|btc|ethereum|eth|crypto|litecoin|ltc|dogecoin|monero|xmr|tron|usdt|solana|ripple|xrp|\
         bitcoin address|wallet address|кошелек|кошелёк|钱包",
    ),
    (
        Cue::Id("us"),
        "ssn|social security|social security number|social security no|soc sec|social|itin|ein|\
         taxpayer identification|tax id|federal tax id|tin|medicare number|mbi|dea number",
    ),
    (Cue::Id("gb"), "nino|national insurance|national insurance number|ni number|nhs|nhs number|nhs no|utr"),
    (Cue::Id("ca"), "sin|social insurance|social insurance number|numéro d'assurance sociale|nas"),
    (Cue::Id("au"), "tfn|tax file number|medicare|medicare card"),
    (Cue::Id("nz"), "ird|ird number"),
    (Cue::Id("ie"), "pps|ppsn|pps number"),
    (
        Cue::Id("de"),
        "steuer-id|steueridentifikationsnummer|steuer-identifikationsnummer|steuerid|idnr|steuernummer|\
         sozialversicherungsnummer|rentenversicherungsnummer|sv-nummer|personalausweisnummer|ausweisnummer",
    ),
    (Cue::Id("at"), "svnr|sv-nr|sozialversicherungsnummer|versicherungsnummer"),
    (Cue::Id("ch"), "ahv|ahv-nummer|avs|numéro avs|ahvn13|navs"),
    (
        Cue::Id("fr"),
        "nir|numéro de sécurité sociale|sécurité sociale|n° sécu|numéro fiscal|numéro de sécu|insee|spi",
    ),
    (Cue::Id("be"), "rijksregisternummer|numéro de registre national|registre national|insz|niss"),
    (Cue::Id("nl"), "bsn|burgerservicenummer|sofinummer|burger service nummer"),
    (Cue::Id("es"), "dni|nie|nif|documento nacional de identidad|número de identidad"),
    (Cue::Id("pt"), "nif|contribuinte|número de contribuinte|cartão de cidadão|bi"),
    (Cue::Id("it"), "codice fiscale|c.f.|cod. fisc."),
    (Cue::Id("pl"), "pesel|nip|numer pesel|dowód osobisty|numer dowodu"),
    (Cue::Id("cz"), "rodné číslo|r.č.|rč|rodne cislo"),
    (Cue::Id("sk"), "rodné číslo|rodne cislo"),
    (Cue::Id("hu"), "taj|taj szám|taj-szám|adóazonosító|adóazonosító jel|személyi szám"),
    (Cue::Id("ro"), "cnp|cod numeric personal"),
    (Cue::Id("bg"), "егн|egn"),
    (Cue::Id("hr"), "oib|osobni identifikacijski broj"),
    (Cue::Id("rs"), "jmbg|јмбг|jedinstveni matični broj"),
    (Cue::Id("si"), "emšo|emso"),
    (Cue::Id("lt"), "asmens kodas"),
    (Cue::Id("lv"), "personas kods"),
    (Cue::Id("ee"), "isikukood"),
    (Cue::Id("fi"), "henkilötunnus|hetu|sotu|henkilötunnukseni"),
    (Cue::Id("se"), "personnummer|samordningsnummer"),
    (Cue::Id("no"), "fødselsnummer|d-nummer|personnummer"),
    (Cue::Id("dk"), "cpr|cpr-nummer|cpr-nr|cpr nr"),
    (Cue::Id("is"), "kennitala"),
    (Cue::Id("gr"), "αμκα|αφμ|amka|afm"),
    (Cue::Id("tr"), "tc kimlik|t.c. kimlik|tckn|kimlik no|kimlik numarası"),
    (Cue::Id("ru"), "инн|снилс|номер снилс|паспорт|паспорта"),
    (Cue::Id("ua"), "рнокпп|іпн|ідентифікаційний код"),
    (Cue::Id("kz"), "иин|жсн"),
    (Cue::Id("il"), "teudat zehut|תעודת זהות|ת.ז.|ת\"ז"),
    (Cue::Id("ae"), "emirates id|رقم الهوية الإماراتية"),
    (Cue::Id("sa"), "iqama|رقم الهوية|الهوية الوطنية"),
    (Cue::Id("eg"), "الرقم القومي"),
    (Cue::Id("za"), "sa id|id nommer|identity number"),
    (Cue::Id("ng"), "nin"),
    (Cue::Id("in"), "aadhaar|aadhar|uidai|आधार|pan card|pan no|permanent account number"),
    (Cue::Id("pk"), "cnic|nadra"),
    (Cue::Id("lk"), "nic number"),
    (Cue::Id("cn"), "身份证|身份证号|身份证号码|居民身份证"),
    (Cue::Id("hk"), "hkid|香港身份證|身份證"),
    (Cue::Id("tw"), "身分證|身分證字號|統一編號"),
    (Cue::Id("jp"), "マイナンバー|個人番号|my number"),
    (Cue::Id("kr"), "주민등록번호|주민번호"),
    (Cue::Id("sg"), "nric|fin number"),
    (Cue::Id("my"), "mykad|no. kad pengenalan|kad pengenalan"),
    (Cue::Id("th"), "เลขประจำตัวประชาชน|บัตรประชาชน"),
    (Cue::Id("id"), "nik|ktp|nomor induk kependudukan"),
    (Cue::Id("vn"), "cccd|cmnd|căn cước"),
    (Cue::Id("ph"), "philsys|umid"),
    (Cue::Id("br"), "cpf|cnpj|rg"),
    (Cue::Id("mx"), "curp|rfc|nss"),
    (Cue::Id("ar"), "cuit|cuil"),
    (Cue::Id("cl"), "rut|run"),
    (Cue::Id("co"), "cédula|cedula|nit|cédula de ciudadanía"),
    (Cue::Id("pe"), "ruc"),
    (Cue::Id("ec"), "cédula de identidad"),
    (Cue::Id("uy"), "cédula de identidad"),
    (Cue::Id("do"), "cédula"),
    (
        Cue::AnyId,
        "national id|national identity|national identification|national identification number|identity card|\
         id card|identity no|identification number|id number|personal id|personal number|government id|citizen id|\
         tax number|tax identification number|vat id|carte d'identité|numéro d'identité|documento de identidad|\
         carta d'identità|identiteitskaart|удостоверение|identitätsnummer|henkilötunnus",
    ),
    (
        Cue::Passport,
        "passport|passport number|passport no|passport #|reisepass|reisepassnummer|passnummer|passeport|\
         numéro de passeport|pasaporte|passaporto|passaporte|paspoort|paspoortnummer|paszport|numer paszportu|\
         загранпаспорт|护照|护照号|パスポート|旅券番号|여권번호|여권|جواز السفر|pasaport",
    ),
    (
        Cue::Licence,
        "driver's license|drivers license|driver license|driving licence|driving license|driver's licence|\
         license number|licence number|dl number|dl no|dl|führerschein|führerscheinnummer|permis de conduire|\
         licencia de conducir|permiso de conducir|patente di guida|patente|carta de condução|cnh|rijbewijs|\
         prawo jazdy|водительское удостоверение|驾驶证|驾照|運転免許証|운전면허|körkort|ajokortti",
    ),
    (
        Cue::Phone,
        "phone|telephone|tel|tel.|ph|mobile|mobile number|cell|cellphone|cell phone|fax|telefax|call|calls|dial|\
         ring|text|texted|sms|whatsapp|telegram|viber|phone number|phone no|contact number|\
         contact no|contact|reach|hotline|helpline|landline|voicemail|handset|pager|toll free|toll-free|\
         number is|my number|number to|your number|telefon|telefonnummer|tel.-nr|rufnummer|handy|handynummer|\
         mobil|mobilnummer|mobiltelefon|festnetz|anrufen|ruf|ruf mich|rückruf|erreichbar|téléphone|téléphoner|portable|\
         numéro de téléphone|tél|tél.|mobile :|appelez|appeler|joindre|teléfono|telefono|móvil|movil|celular|\
         llame|llamar|llámame|número de teléfono|cellulare|chiama|chiamami|chiamare|recapito|telefone|telemóvel|\
         ligue|ligar|número de telefone|contacto|contato|telefoonnummer|telefoon|mobiel|bel|bellen|gsm|\
         numer telefonu|telefonu|komórka|komórkowy|zadzwoń|dzwonić|телефон|тел|тел.|телефону|моб|мобильный|\
         звоните|позвоните|позвонить|номер телефона|факс|дзвоніть|电话|手机|手机号|联系方式|致电|拨打|传真|電話|\
         電話番号|携帯|携帯電話|연락처|전화|전화번호|휴대폰|핸드폰|팩스|هاتف|الهاتف|جوال|اتصل|رقم الهاتف|फोन|मोबाइल|\
         टेलीफोन|נייד|טלפון|โทร|โทรศัพท์|เบอร์|điện thoại|sđt|gọi|telepon|hubungi|nomor hp|hp|cep|arayın|cep telefonu|telefonu|telefonum|telefondan|\
         telefonní číslo|telefonszám|puhelin|puhelinnumero|soita|puh|ring mig|telefonnr|mobilnr|\
         τηλέφωνο|κινητό|τηλ",
    ),
    (
        Cue::Birth,
        "born|born on|date of birth|birth date|birthdate|birthday|dob|d.o.b.|d.o.b|birth|was born|geboren|\
         geboren am|geburtsdatum|geburtstag|geb.|geb. am|né le|née le|né(e) le|né|née|date de naissance|\
         anniversaire|nacido|nacida|nacido el|nació|fecha de nacimiento|cumpleaños|nato il|nata il|nato|nata|\
         data di nascita|compleanno|nascido|nascida|nascido em|nasceu|data de nascimento|aniversário|geboren op|\
         geboortedatum|verjaardag|urodzony|urodzona|data urodzenia|ur.|urodził|urodziła|родился|родилась|\
         дата рождения|рождения|г.р.|день рождения|出生|出生日期|生日|生年月日|誕生日|생년월일|생일|تاريخ الميلاد|\
         مواليد|ولد|जन्म|जन्म तिथि|תאריך לידה|נולד|doğum tarihi|doğum|doğumlu|född|födelsedatum|født|fødselsdato|\
         syntynyt|syntymäaika|narozen|narozena|datum narození|született|születési dátum|ngày sinh|sinh ngày|\
         tanggal lahir|lahir|วันเกิด|วันเดือนปีเกิด|γεννήθηκε|ημερομηνία γέννησης|народився|дата народження",
    ),
    (
        Cue::Mac,
        "mac|mac address|mac-adresse|hardware address|ethernet|hwaddr|adresse mac|bssid|physical address",
    ),
    (
        Cue::Coordinates,
        "gps|coordinates|coordinate|coords|latitude|longitude|lat|lon|lng|latlng|geolocation|geo|location|located|\
         koordinaten|coordonnées|coordenadas|coordinate geografiche|coördinaten|współrzędne|координаты|坐标|座標|좌표",
    ),
    (
        Cue::Version,
        "version|ver|ver.|v|release|build|assembly|assemblyversion|fileversion|firmware|versión|versione|oid|\
         section|chapter|版本|버전",
    ),
    (
        Cue::Reference,
        "order|order number|order no|order id|invoice|invoice number|invoice no|ticket|ticket number|case number|\
         case id|tracking|tracking number|tracking no|reference|ref|ref.|reference number|booking|confirmation|\
         confirmation number|isbn|issn|ean|upc|sku|serial|serial number|part number|part no|model|product|batch|\
         lot|asin|doi|pmid|article|article number|item|item no|transaction|transaction id|request id|trace id|\
         bestellnummer|rechnungsnummer|artikelnummer|seriennummer|auftragsnummer|vorgangsnummer|\
         numéro de commande|commande|facture|pedido|número de pedido|factura|ordine|fattura|bestelling|\
         bestelnummer|factuur|zamówienie|numer zamówienia|faktura|заказ|номер заказа|счет-фактура|订单|订单号|\
         注文番号|주문번호|sipariş|timestamp|unix time|epoch",
    ),
    (
        Cue::Address,
        "address|street address|home address|mailing address|shipping address|billing address|postal address|\
         ship it to|sent to|shipped to|live at|lives at|living at|reside at|resides at|residing at|ship to|deliver to|delivery to|send to|\
         adresse|anschrift|wohnhaft|liefern an|senden an|geliefert an|wohne in|wohnt in|wohnt|adresse postale|livrer à|livrée à|domicilié|domiciliée|habite|j'habite|dirección|\
         domicilio|enviar a|envíe a|enviará a|vivo en|vive en|indirizzo|residente in|spedire a|spedito a|abito in|abita in|endereço|morada|enviar para|enviado para|moro na|mora na|adres|\
         woonachtig|verzonden naar|bezorgd op|woon op|adres zamieszkania|zamieszkały|na adres|mieszkam|адрес|по адресу|проживает|проживаю|地址|住址|住所|주소|العنوان|\
         पता|כתובת|adress|osoite|lakcím|bydliště|địa chỉ|alamat|ที่อยู่|διεύθυνση|\
         deliver it to|send it to|mail it to|delivered to|staying at|moved into|located at|pick me up at|\
         our office at|house at|flat at|apartment at|resident of|demeurant|domicile|résidant|adresse :|direccion|domiciliado|\
         resido en|reside en|mora em|residente em|residente na|ünvan|ünvanı|ünvanım|yaşayıram|adresa|adresă|banoj në|naslov|\
         prebivališče|stanujem|stanuje|živim na|bytem|bydlím|címem|címünk|lakom|locuiesc|domiciliul|adresas|gyvenu|\
         na adrese|na adresi|na adresu|na adresa|adrese|dzīvoju|aadress|heimilisfang|asun osoitteessa|adressen|bor på|bor i|indirizz|seoladh|anwani|ninaishi|\
         tinggal di|beralamat|nakatira sa|tirahan|sống tại|trú tại|nơi ở|adresi|adresim|adresine|adresinde|ikamet|oturuyorum|\
         адресу|адресом|адресат|живу|живёт|живет|прописан|прописана|зарегистрирован|зарегистрирована|проживающий|\
         адреса|адресою|мешкаю|мешкає|адрас|адресът|живея|живеам|живее|живим|станујем|мекенжайы|мекенжай|тұрамын|\
         μένω|κατοικώ|κατοικία|μένει|მისამართი|მისამართია|მისამართზე|ვცხოვრობ|ცხოვრობს|հասցե|հասցեն|հասցեով|ապրում եմ|\
         բնակվում|הכתובת|כתובתי|אני גר|אני גרה|אנחנו גרים|לכתובת|מתגורר|מתגוררת|عنواني|عنوانه|عنوانها|عنوان|أسكن في|يسكن في|تسكن في|مقيم في|\
         آدرس|نشانی|ساکن|پتہ|پتا|निवासी|निवास|पत्ता|राहतो|ठेगाना|ঠিকানা|ਪਤਾ|સરનામું|முகவரி|చిరునామా|ವಿಳಾಸ|വിലാസം|ලිපිනය|\
         อยู่ที่|ທີ່ຢູ່|អាសយដ្ឋាន|လိပ်စာ|家住|寄到|送到|收货地址|通讯地址|联系地址|所在地|お届け先|거주지|배송지",
    ),
    (
        Cue::Secret,
        "password|passwd|pwd|passphrase|passcode|pin|pin code|api key|api-key|apikey|api_key|secret|secret key|\
         access key|access token|auth token|token|credential|private key|client secret|bearer|passwort|kennwort|\
         mot de passe|contraseña|clave|senha|wachtwoord|hasło|пароль|密码|口令|パスワード|비밀번호|كلمة المرور|parola|\
         şifre|lösenord|adgangskode|salasana|heslo|jelszó|mật khẩu|kata sandi|รหัสผ่าน|κωδικός|pasword|parol|otp|\
         one-time code|verification code|recovery code|backup code",
    ),
];

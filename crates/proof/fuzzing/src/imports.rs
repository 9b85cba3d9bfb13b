//! Configurations of mosquitto and EMQX, and files of the dynamic security plugin: an input is the
//! text of one. Files that it names have the same text. What comes of it is a configuration that
//! the broker takes, with its rules and users, or an error says why not and where. Resources of
//! Event Grid: what is read is the same after it was written and read again.

use std::io;
use std::path::{Path, PathBuf};

use config::{Machine, SourceFile, Sources};
use identity::auth::passwords::PasswordFile;
use identity::auth::rules;
use identity::event_grid;
use import::{
    CONFIG_FILE, Files, Imported, Kind, Source, dynamic_security, emqx, mosquitto, recognize,
};

pub fn import_mosquitto(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let imported = mosquitto::import(&source(text), &Same(text));
    if imported.files.is_empty() {
        // No line is an option: that is said once.
        return assert_eq!(imported.notes.len(), 1);
    }
    let is_option = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with('#');
    for (index, line) in text.lines().enumerate().filter(|(_, line)| is_option(line)) {
        let is_plugins = ["plugin_opt_", "auth_opt_"].iter().any(|it| line.trim().starts_with(it));
        let is_noted = imported.notes.iter().any(|note| note.place.line == index + 1);
        assert!(is_noted || is_plugins, "line {} is dropped silently: {line:?}", index + 1);
    }
    check(imported, text);
}

pub fn import_emqx(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    check(emqx::import(&source(text), &Same(text)), text);
}

pub fn import_dynamic_security(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let source = source(text);
    if let Kind::Other(what, remedy) = recognize(source.path, text) {
        assert!(!what.is_empty() && !remedy.is_empty());
    }
    check(dynamic_security::import(&source), text);
}

pub fn import_event_grid(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(found) = event_grid::read(text) else { return };
    let registry = found.registry();
    match event_grid::read(&registry) {
        Ok(again) => assert_eq!(again.clients, found.clients, "{registry}"),
        Err(error) => panic!("{error}: {registry}"),
    }
    let policy = found.policy();
    assert!(policy.parse::<toml::Table>().is_ok(), "{policy}");
}

fn check(mut imported: Imported, text: &str) {
    let directory = Path::new("/out");
    let count = imported.notes.len();
    let accepted = import::check(&mut imported, directory, &Machine::UNKNOWN, &Same(text));
    for added in &imported.notes[count..] {
        assert!(!added.place.file.is_empty(), "{added}");
    }
    if accepted.is_some() {
        assert_eq!(imported.notes.len(), count);
        serve(&imported, directory, text);
    } else {
        assert!(imported.obstacles(true).next().is_some(), "it is refused, and nobody says why");
    }
    for file in &imported.files {
        assert!(!file.name.contains(['/', '\0']), "{:?}", file.name);
        let is_toml = !file.name.ends_with(".toml") || file.text.parse::<toml::Table>().is_ok();
        assert!(is_toml, "{}: {}", file.name, file.text);
    }
    assert!(imported.notes.iter().all(|note| !note.detail.is_empty()));
}

/// The broker takes what was accepted.
fn serve(imported: &Imported, directory: &Path, text: &str) {
    let path = directory.join(CONFIG_FILE);
    let file = SourceFile { path, text: imported.config().to_owned() };
    let sources = Sources { file: Some(file), ..Sources::default() };
    let loaded = config::load(&sources, &Machine::UNKNOWN).expect("a valid configuration");
    let reader = |path: &Path| {
        let own = imported.files.iter().find(|file| directory.join(&file.name) == path);
        own.map_or_else(|| Same(text).read(path), |file| Ok(file.text.clone()))
    };
    match rules::load_by(&loaded.config, &reader) {
        Ok(_) => {}
        Err(error) => assert!(error.to_string().contains("cannot read"), "{error}"),
    }
    for file in imported.files.iter().filter(|file| file.name.ends_with(".passwd")) {
        assert!(PasswordFile::parse(&file.text).is_ok(), "{}", file.text);
    }
}

fn source(text: &str) -> Source<'_> {
    Source { path: Path::new("/etc/broker.conf"), text, host: "host" }
}

/// Every file has the text of the input, and a directory has one file.
struct Same<'a>(&'a str);

impl Files for Same<'_> {
    fn read(&self, path: &Path) -> io::Result<String> {
        match path.ends_with("missing") {
            true => Err(io::ErrorKind::NotFound.into()),
            false => Ok(self.0.into()),
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(vec![directory.join("a.conf")])
    }
}

pub fn mosquitto_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "per_listener_settings true\nlistener 1883 ::1\npassword_file /p\nacl_file /a\n\
         listener 0 /run/m.sock\nallow_anonymous true\nmax_connections 5\n",
        "port 1883\ncertfile c\nkeyfile k\ncafile a\nrequire_certificate 1\ntls_version tlsv1.3\n\
         max_packet_size 20\nmessage_size_limit 0\npersistent_client_expiration 2m\n",
        "connection b\naddress h [::1]:1884\ntopic # both 2 l/ r/\ntopic \"\" in 0 a b\n\
         remote_username u\nremote_password p\nbridge_cafile f\nlog_dest file /l\nlog_type all\n",
        "include_dir /d\nauth_plugin go-auth.so\nauth_opt_backends files, x\n\
         auth_opt_files_acl_path /a\npsk_hint h\n",
        "topic read a/#\nuser anna\ntopic deny b\npattern deny %c/%u\npattern write x\n",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub fn emqx_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "mqtt { max_packet_size = 1MB, session_expiry_interval = \"1h30m\" }\n\
         listeners.ssl.a { bind = \"[::]:8883\", ssl_options { certfile = \"c\", keyfile = k } }\n",
        "authentication = [{mechanism = jwt, secret = \"0123456789abcdef0123456789abcdef\"}, \
         {mechanism = password_based, backend = http, url = \"http://x\", \
         body { a = \"${username}\" }}]\n",
        "authorization { no_match = allow, sources = [{type = file, rules = \"\"\"~\n  \
         {allow, {'and', [{user, \"a\"}, {ipaddr, \"::1\"}]}, {publish, [{qos, 1}]}, \
         [{eq, \"#\"}, \"${clientid}\"]}.\n~\"\"\"}] } # c\n",
        "log.file { enable = true, level = debug, path = \"/l\" }\nnode.data_dir = \"d\" // c\n",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub fn dynamic_security_seeds() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"clients":[{"username":"anna","textName":"\u00e9","clientid":"c","roles":[{"rolename":"r",
        "priority":2}],"password":"aGFzaGhhc2hoYXNoaGFzaA==","salt":"c2FsdA==","iterations":101},
        {"username":"bob","disabled":true}],"groups":[{"groupname":"g","roles":[{"rolename":"r"}],
        "clients":[{"username":"bob","priority":-1}]}],"anonymousGroup":"g","roles":[{"rolename":"r",
        "acls":[{"acltype":"publishClientSend","topic":"a/%c/#","priority":1,"allow":true},
        {"acltype":"publishClientReceive","topic":"a/+","allow":false},
        {"acltype":"publishClientReceive","topic":"+/b","allow":true},
        {"acltype":"subscribeLiteral","topic":"$SYS/#","allow":true},
        {"acltype":"subscribeLiteral","topic":"b","allow":false},
        {"acltype":"subscribePattern","topic":"%u/#","allow":true},
        {"acltype":"unsubscribePattern","topic":"\u0023","allow":true}]}],
        "defaultACLAccess":{"publishClientSend":false,"publishClientReceive":false,
        "subscribe":true,"unsubscribe":true}}"#,
        r#"{"clients":[{"username":"a","encoded_password":"$7$1$eA==$eA=="}],"roles":[]}"#,
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub fn event_grid_seeds() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"name":"c","authenticationName":"Pump-1","state":"Disabled","attributes":{"floor":-3.5e2,
        "sensors":["motion","é"],"kind":"pump"},"clientCertificateAuthentication":{
        "validationScheme":"DnsMatchesAuthenticationName"}}"#,
        r#"[{"name":"g","query":"attributes.kind IN ['pump'] AND attributes.floor > 2"},
        {"name":"s","topicTemplates":["a/${client.authenticationName}/#","b/+"]},
        {"name":"b","clientGroupName":"g","topicSpaceName":"s","permission":"Publisher"}]"#,
        r#"{"resources":[{"type":"Microsoft.EventGrid/namespaces","name":"n","properties":{},
        "resources":[{"type":"clients","name":"p","properties":{"clientCertificateAuthentication":{
        "validationScheme":"ThumbprintMatch","allowedThumbprints":
        ["ABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABAB"]}}}]}]}"#,
        r#"{"value":[{"name":"x","properties":{"query":"true"},"type":"clientGroups"}]}"#,
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

//! What a request says about thinking, in its many ways, as the chat template's keywords.

use serde_json::{Map, Value};

use super::request::RequestContext;
use crate::{error::ApiError, fields::shown};

/// The ways a request can speak about thinking.
pub struct Thinking<'a> {
    pub enable: Option<bool>,
    pub preserve: Option<bool>,
    pub effort: Option<&'a str>,
    /// What the API calls that field.
    pub effort_path: &'a str,
    pub kwargs: Option<Map<String, Value>>,
}

impl Thinking<'_> {
    /// The template's keywords. Fields that contradict each other are refused.
    pub fn keywords(self, context: &RequestContext) -> Result<Map<String, Value>, ApiError> {
        let mut keywords = self.kwargs.unwrap_or_default();
        for reserved in ["messages", "tools", "add_generation_prompt"] {
            if keywords.contains_key(reserved) {
                return Err(ApiError::invalid(
                    format!("chat_template_kwargs.{reserved}"),
                    format!("{reserved} is set by the server; remove it"),
                ));
            }
        }
        for name in keywords.keys() {
            context.check_keyword(&format!("chat_template_kwargs.{name}"), name)?;
        }
        let effort = match self.effort {
            None => None,
            Some("none") => Some((self.effort_path, false)),
            // The model has one depth of thinking.
            Some("minimal" | "low" | "medium" | "high" | "xhigh" | "max") => Some((self.effort_path, true)),
            Some(other) => {
                return Err(ApiError::invalid(
                    self.effort_path,
                    format!("found {other:?}; expected none, minimal, low, medium, high, xhigh or max"),
                ));
            }
        };
        let enable = self.enable.map(|b| ("enable_thinking", b));
        let preserve = self.preserve.map(|b| ("preserve_thinking", b));
        for (name, fields) in [("enable_thinking", [enable, effort]), ("preserve_thinking", [preserve, None])]
        {
            for (field, _) in fields.into_iter().flatten() {
                context.check_keyword(field, name)?;
            }
            merge(&mut keywords, name, fields)?;
        }
        if let (Some(default), false) = (context.thinking, keywords.contains_key("enable_thinking")) {
            keywords.insert("enable_thinking".into(), default.into());
        }
        keywords.insert("add_generation_prompt".into(), true.into());
        Ok(keywords)
    }
}

/// Sets the template keyword `name` from the request's fields, which must agree with each other.
fn merge(
    keywords: &mut Map<String, Value>,
    name: &str,
    fields: [Option<(&str, bool)>; 2],
) -> Result<(), ApiError> {
    let path = format!("chat_template_kwargs.{name}");
    let mut known = match keywords.get(name) {
        None => None,
        Some(Value::Bool(b)) => Some((path.as_str(), *b)),
        Some(other) => {
            let found = shown(other);
            return Err(ApiError::invalid(&path, format!("found {found}; expected true or false")));
        }
    };
    for (field, value) in fields.into_iter().flatten() {
        match known {
            Some((first, other)) if other != value => {
                return Err(ApiError::invalid(
                    field,
                    format!("{field} says {value} for {name}, but {first} says {other}; send one of them"),
                ));
            }
            _ => known = Some((field, value)),
        }
    }
    if let Some((_, value)) = known {
        keywords.insert(name.into(), value.into());
    }
    Ok(())
}

impl RequestContext {
    /// Refuses a template keyword that would change nothing: a misspelling, or something the model cannot do.
    fn check_keyword(&self, path: &str, name: &str) -> Result<(), ApiError> {
        match &self.template {
            Some(template) if !template.reads(name) => Err(ApiError::unsupported(
                path,
                format!(
                    "this model's chat template does not read {name:?}; remove `{path}` or check its spelling"
                ),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lily_engine::SamplingParams;
    use lily_text::ChatTemplate;
    use serde_json::json;

    use super::{super::request, *};

    #[test]
    fn keywords_the_template_does_not_read_are_refused() {
        let template = ChatTemplate::new("{{ messages }}{% if enable_thinking %}{% endif %}").unwrap();
        let context = RequestContext {
            sampling: SamplingParams::default(),
            vocab: 100,
            thinking: Some(false),
            models: vec!["m".into()],
            template: Some(Arc::new(template)),
        };
        let parse = |fields: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            request::parse(body.to_string().as_bytes(), &context)
        };
        for good in [
            json!({}),
            json!({"enable_thinking": true}),
            json!({"reasoning_effort": "none"}),
            json!({"chat_template_kwargs": {"enable_thinking": true}}),
        ] {
            assert!(parse(good.clone()).is_ok(), "{good}");
        }
        for (bad, param) in [
            (
                json!({"chat_template_kwargs": {"enable_thinkin": true}}),
                "chat_template_kwargs.enable_thinkin",
            ),
            (json!({"chat_template_kwargs": {"raise_exception": 1}}), "chat_template_kwargs.raise_exception"),
            (json!({"preserve_thinking": true}), "preserve_thinking"),
        ] {
            let error = parse(bad).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)));
        }
    }
}

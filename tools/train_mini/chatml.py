"""Conversations as the model sees them: ChatML with Qwen3.6's conventions for thinking and tools.

The text must equal what `models/lily-mini/chat_template.jinja` renders; `check_template.py` compares the two.
"""
import json

START, END = '<|im_start|>', '<|im_end|>'
NO_THINK = '<think>\n\n</think>\n\n'
TOOL_TAIL = ('\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n<function=example_function_name>\n'
             '<parameter=example_parameter_1>\nvalue_1\n</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\n'
             'multiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an inner '
             '<function=...></function> block must be nested within <tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n- You may provide optional '
             'reasoning for your function call in natural language BEFORE the function call, but NOT after\n- If there is no function call available, answer the question '
             'like normal with your current knowledge and do not tell the user about function calls\n</IMPORTANT>')
# Special tokens in the order of their ids (the last ones of the vocabulary); those from index 14 on are not "special" in Qwen's sense.
SPECIAL = ['<|endoftext|>', '<|im_start|>', '<|im_end|>', '<|object_ref_start|>', '<|object_ref_end|>', '<|box_start|>', '<|box_end|>', '<|quad_start|>', '<|quad_end|>',
           '<|vision_start|>', '<|vision_end|>', '<|vision_pad|>', '<|image_pad|>', '<|video_pad|>', '<tool_call>', '</tool_call>', '<|fim_prefix|>', '<|fim_middle|>',
           '<|fim_suffix|>', '<|fim_pad|>', '<|repo_name|>', '<|file_sep|>', '<tool_response>', '</tool_response>', '<think>', '</think>']
NOT_SPECIAL = set(SPECIAL[14:])


def tool_block(tools, system=None):
    """The system turn that offers tools."""
    s = START + 'system\n# Tools\n\nYou have access to the following functions:\n\n<tools>'
    for t in tools:
        s += '\n' + json.dumps(t, ensure_ascii=False)
    return s + TOOL_TAIL + (('\n\n' + system) if system else '') + END + '\n'


def tool_schema(name, description, parameters, required):
    """An OpenAI-style function; parameters {name: JSON schema}."""
    return {'type': 'function', 'function': {'name': name, 'description': description,
                                             'parameters': {'type': 'object', 'properties': parameters, 'required': required}}}


def tool_call(name, arguments):
    """The XML form of a call; arguments {parameter: text}."""
    body = ''.join(f'<parameter={k}>\n{v}\n</parameter>\n' for k, v in arguments.items())
    return f'<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>'


def render(turns, system=None, tools=None):
    """turns -> [(text, learn)] segments, learn = 1 on what the assistant writes.

    A turn is ('user', text), ('tool', result) or ('assistant', text, thinking or None). As in Qwen3.6's template, only the
    assistant turns after the last user turn carry their thinking (an empty block when thinking is off).
    """
    segments = []
    head = tool_block(tools, system) if tools else f'{START}system\n{system}{END}\n' if system else ''
    last_user = max(i for i, t in enumerate(turns) if t[0] == 'user')
    for i, t in enumerate(turns):
        if t[0] == 'user':
            head += f'{START}user\n{t[1].strip()}{END}\n'
        elif t[0] == 'tool':
            head += f'{START}user\n<tool_response>\n{t[1]}\n</tool_response>{END}\n'
        else:
            _, text, thinking = t
            head += f'{START}assistant\n'
            body = text
            if i > last_user:
                if thinking:
                    head, body = head + '<think>\n', f'{thinking}\n</think>\n\n{text}'
                else:
                    head += NO_THINK
            segments += [(head, 0), (body + END, 1)]
            head = '\n'
    return segments


def prompt(messages, thinking=False, tools=None, system=None):
    """The prompt for the next answer; messages [('user' | 'assistant' | 'tool', text)]."""
    s = tool_block(tools, system) if tools else f'{START}system\n{system}{END}\n' if system else ''
    for role, text in messages:
        if role == 'tool':
            s += f'{START}user\n<tool_response>\n{text}\n</tool_response>{END}\n'
        else:
            s += f'{START}{role}\n{text.strip()}{END}\n'
    return s + f'{START}assistant\n<think>\n' + ('' if thinking else '\n</think>\n\n')

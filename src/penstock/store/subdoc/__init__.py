"""Sub-document commands: reading and changing parts of a document of JSON text, and of its extended attributes.

path     the path of a part, taken apart
place    where a path leads in a text
text     JSON text: whether it is some, how deep it is, where its parts lie, changes that are put into it
scan     what text does without the extension module
edit     one operation on one text
rules    which operations, flags and paths may stand together in a command
virtual  the attributes that no document has stored, and values that stand for what a store will give
command  all operations of a command on one document

Nothing here knows of vbuckets or of the wire. A text is changed where it stands: what an operation does not name stays
byte for byte as it was, white space, spelling of numbers and order of keys included.

Source: memcached SubDocument API and its behaviour in Couchbase Server 7.6. Where that says nothing, or accepts what
its documentation does not describe, the modules say what was decided.
"""

document.querySelectorAll('figure.chart').forEach(function(figure){
  var svg=figure.querySelector('svg'),probe=svg.querySelector('.probe'),tip=document.createElement('div');
  tip.className='tip';figure.appendChild(tip);
  var lines=[].map.call(svg.querySelectorAll('.line'),function(g){
    return {name:g.dataset.name,key:g.dataset.key,
      points:g.dataset.p.split(';').slice(0,-1).map(function(p){var i=p.indexOf(',');return [+p.slice(0,i),p.slice(i+1)]})};
  });
  function hide(){tip.style.display='none';probe.setAttribute('visibility','hidden')}
  svg.addEventListener('pointerleave',hide);
  svg.addEventListener('pointermove',function(e){
    var box=svg.getBoundingClientRect(),x=(e.clientX-box.left)/box.width*640,best=null;
    lines.forEach(function(line){line.points.forEach(function(p){if(best===null||Math.abs(p[0]-x)<Math.abs(best-x))best=p[0]})});
    if(best===null)return hide();
    tip.textContent='';
    var head=null;
    lines.forEach(function(line){
      var near=null;
      line.points.forEach(function(p){if(near===null||Math.abs(p[0]-best)<Math.abs(near[0]-best))near=p});
      if(!near||Math.abs(near[0]-best)>4)return;
      var cut=near[1].indexOf(' \u00b7 ');
      if(head===null){head=document.createElement('div');head.style.color='var(--soft)';head.textContent=near[1].slice(0,cut);tip.appendChild(head)}
      var row=document.createElement('div'),key=document.createElement('b');
      key.style.color='var(--'+line.key+')';key.textContent='\u25cf ';
      row.appendChild(key);row.appendChild(document.createTextNode(line.name+': '+near[1].slice(cut+3)));tip.appendChild(row);
    });
    probe.setAttribute('x1',best);probe.setAttribute('x2',best);probe.setAttribute('visibility','visible');
    tip.style.display='block';
    var px=best/640*box.width,left=px+14;
    if(left+tip.offsetWidth>box.width)left=px-14-tip.offsetWidth;
    tip.style.left=Math.max(0,left)+'px';tip.style.top=(svg.offsetTop+16)+'px';
  });
});
var folded=[];
addEventListener('beforeprint',function(){
  folded=[].slice.call(document.querySelectorAll('details:not([open])'));
  folded.forEach(function(one){one.open=true});
});
addEventListener('afterprint',function(){folded.forEach(function(one){one.open=false})});
